// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/stacks.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"

#define LOOK_NS 100000000ull
#define GIVEN_UP_MAX 4096u /* at once: each is kept until it is certain that nobody names it, 1 KiB */

struct given_up {
	ml_u64 hash;
	struct ml_kernel_stack stack;
};

struct work {
	ml_u64 named[ML_KERNEL_KEY_SLOTS]; /* hashes of live blocks' stacks, in order */
	size_t n_named;
	struct given_up rows[GIVEN_UP_MAX];
	ml_u32 count;
};

static ml_u64 live_objects(const struct ml_kernel_key *key)
{
	return key->key ? key->alloc_objects - key->free_objects : 0;
}

static void find_named(struct work *work, const struct ml_kernel *kernel)
{
	work->n_named = 0;
	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++)
		if (live_objects(&kernel->keys[slot]))
			work->named[work->n_named++] = kernel->keys[slot].stack;
	qsort(work->named, work->n_named, sizeof(*work->named), ml_compare_u64);
}

static bool is_named(const struct work *work, ml_u64 hash)
{
	return bsearch(&hash, work->named, work->n_named, sizeof(hash), ml_compare_u64) != NULL;
}

static void find_idle(struct work *work, const struct ml_kernel *kernel)
{
	ml_u64 hash, *previous = NULL;

	while (work->count < GIVEN_UP_MAX && !bpf_map_get_next_key(kernel->stacks_fd, previous, &hash)) {
		previous = &hash;
		if (!is_named(work, hash) && !bpf_map_lookup_elem(kernel->stacks_fd, &hash, &work->rows[work->count].stack))
			work->rows[work->count++].hash = hash;
	}
}

static ml_u64 blocks_of(const struct ml_kernel *kernel, ml_u64 hash)
{
	ml_u64 sum = 0;

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++)
		sum += kernel->keys[slot].stack == hash ? live_objects(&kernel->keys[slot]) : 0;
	return sum;
}

static ml_u64 put_back(struct ml_kernel_stacks *stacks, const struct work *work, const struct ml_kernel *kernel)
{
	ml_u64 lost = 0;

	for (ml_u32 i = 0; i < work->count; i++) {
		const struct given_up *row = &work->rows[i];

		if (!is_named(work, row->hash))
			continue;
		if (!bpf_map_update_elem(kernel->stacks_fd, &row->hash, &row->stack, BPF_NOEXIST))
			stacks->n_given_up--;
		else if (errno != EEXIST) /* the programs have filled the room already */
			lost += blocks_of(kernel, row->hash);
	}
	return lost;
}

static ml_u64 give_up(struct ml_kernel_stacks *stacks, struct work *work, const struct ml_kernel *kernel)
{
	find_named(work, kernel);
	find_idle(work, kernel);
	for (ml_u32 i = 0; i < work->count; i++)
		stacks->n_given_up += !bpf_map_delete_elem(kernel->stacks_fd, &work->rows[i].hash);
	if (!work->count)
		return 0;
	/* Programs run in an RCU read section: after a grace period none is running that saw a deleted stack. */
	stacks->is_refused = syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) != 0;
	find_named(work, kernel);
	return put_back(stacks, work, kernel);
}

/* Refused with isolated CPUs (nohz_full), and without CONFIG_MEMBARRIER. */
static bool can_wait(void)
{
	long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);

	return commands > 0 && commands & MEMBARRIER_CMD_GLOBAL;
}

ml_u64 ml_kernel_stacks_recycle(struct ml_kernel_stacks *stacks, const struct ml_kernel *kernel)
{
	ml_u64 now = ml_clock_ns(), lost = 0;
	struct work *work;

	if (now < stacks->next_ns || stacks->is_refused)
		return 0;
	stacks->next_ns = now + LOOK_NS;
	if (ml_kernel_counter(kernel, ML_KERNEL_NEW_STACKS) - stacks->n_given_up <= kernel->max_stacks / 2)
		return 0;
	stacks->is_refused = !can_wait();
	work = stacks->is_refused ? NULL : malloc(sizeof(*work));
	if (work) {
		work->count = 0;
		lost = give_up(stacks, work, kernel);
	}
	free(work);
	if (stacks->is_refused)
		ml_blocks_log(
			"kernel stacks are kept to the end: this kernel refuses membarrier(2), which shows when a stack is unused");
	return lost;
}
