// SPDX-License-Identifier: Apache-2.0
#include "attach.h"

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/clock.h"
#include "preload/recorder/connect.h"
#include "preload/stacks/frame_resolve.h"
#include "preload/freestanding/lock.h"
#include "preload/hooks/names.h"
#include "preload/hooks/inline_hook.h"
#include "preload/stacks/maps.h"
#include "preload/entries/operators.h"
#include "preload/entries/originals.h"
#include "preload/entries/pair_entries.h"
#include "preload/entries/pairs.h"
#include "preload/entries/python_objects.h"
#include "preload/hooks/plt_hook.h"
#include "preload/recorder/recorder.h"

#define SETTLE_NS 10000000 /* most calls that are under way have returned by then; the others are harmless */

/* The shim's own: it is linked with -Bsymbolic, so these are not libc's where the shim does not interpose. */
#define DECLARE(function, result, parameters) extern char function[];
ML_ALLOCATOR_FUNCTIONS(DECLARE)

#define HOOK(function, result, parameters) { #function, (unsigned long)function, 0 },
struct memleak_hook memleak_hooks[] = { ML_ALLOCATOR_FUNCTIONS(HOOK) };
#define N_HOOKS (sizeof(memleak_hooks) / sizeof(memleak_hooks[0]))

enum mode { NOT_ATTACHED, PLT, INLINE };

static struct ml_lock lock; /* held while attaching or detaching */
static enum mode mode;

/* Parses "NAME:NONCE mode=MODE". NOT_ATTACHED if it has another form. */
static enum mode read_line(const char *line)
{
	static const char modes[][13] = { [PLT] = " mode=plt", [INLINE] = " mode=inline" };
	size_t length = 0;

	while (length < ML_ATTACH_LINE_MAX && line[length] && line[length] != ' ')
		length++;
	for (enum mode candidate = PLT; candidate <= INLINE && length < ML_ATTACH_LINE_MAX; candidate++)
		if (ml_is_same_text(line + length, modes[candidate]))
			return ml_connect_read_text(line, length) ? candidate : NOT_ATTACHED;
	return NOT_ATTACHED;
}

/* Takes over the addresses to which the agent moved functions. Returns 1 if malloc and free are among them. */
static int adopt_moved(void)
{
	unsigned int n_needed = 0;

	for (size_t i = 0; i < N_HOOKS; i++) { /* the first of ml_hooks, too */
		if (!memleak_hooks[i].original)
			continue;
		*ml_hooks[i].original = memleak_hooks[i].original;
		n_needed += ml_is_same_text(memleak_hooks[i].name, "malloc") || ml_is_same_text(memleak_hooks[i].name, "free");
	}
	if (n_needed == 2) {
		ml_originals_adopt();
		ml_maps_allocator.address = memleak_moved_code; /* the originals lead there by way of our trampolines */
	}
	return n_needed == 2;
}

static int leave(void)
{
	int left = 0;

	ml_recorder_turn_off();
	ml_python_objects_unwrap();
	if (mode != NOT_ATTACHED)
		left = ml_plt_hook_restore();
	if (mode == INLINE)
		ml_pairs_end();
	if (mode != NOT_ATTACHED) {
		ml_pause_ns(SETTLE_NS);
		ml_recorder_retire();
	}
	mode = NOT_ATTACHED;
	return left;
}

/*
 * Called where the loader's lock may be waited for, before an import loads an extension, too. Restores everything once the agent is
 * gone.
 */
static void tidy(void)
{
	ml_python_objects_wrap();
	if (__builtin_expect(!__atomic_load_n(&ml_recorder_leaked_session, __ATOMIC_RELAXED), 1) || !ml_lock_try(&lock))
		return;
	if (__atomic_exchange_n(&ml_recorder_leaked_session, 0, __ATOMIC_RELAXED) == ml_view_in_force()->session)
		leave();
	ml_lock_release(&lock, 0);
}

static unsigned int with_regions(unsigned int families)
{
	return families | (ml_view_in_force()->settings.flags & ML_SETTING_MMAP ? ML_HOOK_BIT(ML_HOOK_REGIONS) : 0);
}

static int join(enum mode wanted)
{
	int result;

	ml_maps_forget(ML_STRAGGLERS_MS);
	ml_frame_resolve_forget(ML_STRAGGLERS_MS);
	result = ml_recorder_join();
	if (result)
		return result == -EAGAIN ? ML_ATTACH_NOT_FORKED_SAFE : result;
	mode = wanted;
	ml_hook_before_loader = tidy;
	if (wanted == INLINE)
		ml_pairs_begin_moved(ml_view_in_force());
	if (wanted == PLT && ml_view_in_force()->pairs->n_rules)
		result = ml_plt_hook_find_pairs(ml_view_in_force());
	if (wanted == PLT && !result)
		result = ml_plt_hook_patch(with_regions(ML_HOOKS_OF_PLT));
	if (wanted == INLINE)
		ml_plt_hook_patch(with_regions(ML_HOOKS_OF_INLINE)); /* without slots, too, the allocator's code is patched */
	if (result) {
		leave();
		return result;
	}
	ml_plt_hook_report_to(wanted == PLT ? ml_view_in_force() : NULL);
	ml_recorder_turn_on();
	ml_python_objects_wrap();
	return ML_ATTACH_OK;
}

/* Finds the originals and joins the session: enum ml_attach_result or -errno. */
static int enter(enum mode wanted)
{
	int result = ml_hook_knows_allocator ? ML_ATTACH_OK : ml_plt_hook_find_originals();

	if (result == -ENOSYS)
		result = ML_ATTACH_NO_MODULES;
	if (wanted == PLT && !result && memleak_moved_code) {
		memleak_moved_code = 0;
		result = ml_hook_adopt();
	}
	if (wanted == INLINE && result >= 0) /* an allocator without exported functions will do */
		result = adopt_moved() || memleak_pair_originals[0] ? ML_ATTACH_OK : ML_ATTACH_NO_ORIGINAL;
	return result ? result : join(wanted);
}

int memleak_attach(const char *line)
{
	enum mode wanted;

	if (!ml_lock_try(&lock))
		return ML_ATTACH_BUSY;
	if (ml_originals_are_interposed)
		return ml_lock_release(&lock, ML_ATTACH_PRELOADED);
	if (mode != NOT_ATTACHED && ml_recorder_is_read())
		return ml_lock_release(&lock, ML_ATTACH_MEASURED);
	wanted = line ? read_line(line) : NOT_ATTACHED;
	if (wanted == NOT_ATTACHED)
		return ml_lock_release(&lock, ML_ATTACH_BAD_LINE);
	if (mode != NOT_ATTACHED)
		leave();
	return ml_lock_release(&lock, enter(wanted));
}

int memleak_detach(void)
{
	if (!ml_lock_try(&lock))
		return -EBUSY;
	return ml_lock_release(&lock, leave());
}

/*
 * In a process that was started with the shim: patches the slots of functions that it does not interpose, those of --pairs, an
 * allocator's own operators, and the loader's where Python loads extensions.
 */
static void attach_slots(void)
{
	const struct ml_view *view = ml_view_in_force();

	ml_python_objects_wrap();
	if (!ml_recorder_is_on() ||
	    !(view->pairs->n_rules || view->segment->python_objects || ml_operators_are_the_allocator_s()) ||
	    !ml_lock_try(&lock))
		return;
	ml_hook_before_loader = tidy;
	if (!ml_plt_hook_find_pairs(view))
		ml_plt_hook_patch(ML_HOOKS_OF_PRELOAD);
	ml_lock_release(&lock, 0);
}

int ml_attach_own(void)
{
	if (!ml_lock_try(&lock))
		return -EBUSY;
	return ml_lock_release(&lock, mode == NOT_ATTACHED ? enter(PLT) : -EBUSY);
}

void ml_attach_leave_own(void)
{
	ml_recorder_turn_off();
	if (!ml_lock_try(&lock))
		return;
	if (mode == PLT)
		ml_plt_hook_restore();
	mode = NOT_ATTACHED;
	ml_lock_release(&lock, 0);
}

/* ---- early start -------------------------------------------------------------------------------------- */

extern char **environ __attribute__((weak));

/*
 * On bionic, preloaded libraries start before libc has set `environ`. A constructor's arguments do not help: musl and
 * Android's linkers up to version 7 pass none.
 */
__attribute__((constructor)) static void start(void)
{
	char **environment = &environ ? environ : NULL;

	if (!ml_connect_read_environment(environment)) /* brought in by dlopen(), or without a session */
		return;
	ml_originals_ready();
	attach_slots();
	if (ml_nonce_is_set(&ml_connect_session.nonce) && !ml_recorder_is_following())
		ml_connect_clean_environment(environment ? environment : ml_connect_first_environment());
}
