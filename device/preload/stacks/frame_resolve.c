// SPDX-License-Identifier: Apache-2.0
/*
 * Reads memory by the kernel (process_vm_readv(2) on ourselves) into a cache of pages, so that a library unmapped by
 * another thread cannot make us fault. What was read of it then describes code that no thread executes any more. After
 * a fork: recorder/forks.h.
 */
#include "preload/stacks/frame_resolve.h"

#include <sys/uio.h>

#include "cfi/cfi.h"
#include "frame_step.h"
#include "preload/freestanding/clock.h"
#include "preload/stacks/code_lines.h"
#include "preload/freestanding/syscalls.h"

#define MODULES 64u /* power of two */
#define WAIT_STEP_NS 50000
#define WAIT_STEPS 100 /* at least 5 ms; a look-up takes some microseconds */

struct module { /* a code mapping that begins at `low` */
	ml_u64 low; /* 0 = empty */
	enum ml_cfi_found found;
	struct ml_eh_frame eh_frame;
};

/* The holder of is_locked owns the other fields and may add rules. */
static struct {
	ml_u32 is_locked;
	ml_u32 generation; /* of the code map for which the rest is valid */
	ml_u32 pid;
	struct module modules[MODULES];
	struct ml_remote_memory memory;
} reader;

/* Called by remote_memory.c in place of libc's. */
__attribute__((visibility("hidden"))) ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n_here,
							       const struct iovec *there, unsigned long n_there,
							       unsigned long flags)
{
	return ML_SYSCALL6(process_vm_readv, pid, here, n_here, there, n_there, flags);
}

static void renew(ml_u32 generation)
{
	ml_u32 pid = (ml_u32)ML_SYSCALL0(getpid);

	if (reader.pid == pid && reader.generation == generation)
		return;
	if (reader.pid)
		ml_remote_memory_forget(&reader.memory, reader.pid);
	for (ml_u32 i = 0; i < MODULES; i++)
		reader.modules[i].low = 0;
	reader.pid = pid;
	reader.generation = generation;
}

static struct module *module_at(ml_u32 which, const struct ml_cfi_arch *arch, ml_u64 pc)
{
	struct ml_code_location location;
	struct module *module;

	if (!ml_code_lines_find(which, pc, &location) || !location.low)
		return NULL;
	module = &reader.modules[location.low / ML_REMOTE_PAGE_BYTES % MODULES];
	if (module->low == location.low)
		return module;
	module->low = location.low;
	module->found = ML_CFI_ABSENT;
	for (ml_u32 i = 0; i < location.n_headers && module->found != ML_CFI_FOUND; i++)
		module->found = ml_eh_frame_open(&reader.memory, reader.pid, arch, location.headers[i], pc, &module->eh_frame);
	if (module->found == ML_CFI_UNREADABLE)
		module->low = 0; /* to be tried again */
	return module;
}

static int is_in_force(const struct ml_view *view, const struct ml_code_map *map, ml_u32 revision)
{
	ml_u32 current = __atomic_load_n(&view->segment->current_map, __ATOMIC_ACQUIRE) & 1;

	return &view->code_maps[current] == map && __atomic_load_n(&map->revision, __ATOMIC_RELAXED) == revision;
}

static int resolve(const struct ml_view *view, const struct ml_code_map *map, ml_u64 return_address, struct ml_frame_rule *rule)
{
	const struct ml_cfi_arch *arch = ml_cfi_native();
	ml_u64 pc = return_address - 1; /* within the call instruction: the next may belong to another function */
	ml_u32 revision = __atomic_load_n(&map->revision, __ATOMIC_RELAXED);
	struct module *module;
	struct ml_fde fde;
	enum ml_cfi_found found;

	renew(map->generation);
	module = arch ? module_at((ml_u32)(map - view->code_maps), arch, pc) : NULL;
	if (!module || module->found != ML_CFI_FOUND)
		return 0;
	*rule = (struct ml_frame_rule){ .hash = ml_frame_hash(return_address, map->generation), .cfa = ML_FRAME_NONE };
	found = ml_eh_frame_find(&reader.memory, reader.pid, &module->eh_frame, pc, &fde);
	if (found == ML_CFI_FOUND)
		found = ml_cfi_rule(&reader.memory, reader.pid, arch, &fde, pc, rule);
	if (found == ML_CFI_UNREADABLE || !is_in_force(view, map, revision)) {
		module->low = 0; /* the file may be another map's */
		return 0;
	}
	/* If the set is full, the rule is only looked up again. */
	if (!ml_frame_find(view->rules, rule->hash) && ml_frame_add(view->rules, rule) >= 0)
		__atomic_fetch_add(&view->segment->rules_revision, 1, __ATOMIC_RELEASE);
	return 1;
}

/*
 * A missing rule usually costs precision of a key only. If the walk is all that is recorded of a stack, this waits, but
 * not forever: the holder may be this thread, interrupted by a handler.
 */
static int lock_reader(int steps)
{
	while (__atomic_exchange_n(&reader.is_locked, 1, __ATOMIC_ACQUIRE)) {
		if (!steps--)
			return 0;
		ml_pause_ns(WAIT_STEP_NS);
	}
	return 1;
}

int ml_frame_resolve(const struct ml_view *view, const struct ml_code_map *map, ml_u64 return_address,
		     struct ml_frame_rule *rule)
{
	int is_known;

	if (!lock_reader(view->settings.flags & ML_SETTING_NO_STACK ? WAIT_STEPS : 0))
		return 0;
	is_known = resolve(view, map, return_address, rule);
	__atomic_store_n(&reader.is_locked, 0, __ATOMIC_RELEASE);
	return is_known;
}

void ml_frame_resolve_forget(ml_u32 patience_ms)
{
	lock_reader((int)(patience_ms * 1000000ull / WAIT_STEP_NS));
	__atomic_store_n(&reader.is_locked, 0, __ATOMIC_RELEASE); /* a forked child's first use resets the rest by its pid */
}
