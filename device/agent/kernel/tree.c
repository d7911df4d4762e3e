// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/kernel/tree.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/process/thread_states.h"

#define PAUSE_MS 20
#define QUIET_NS 200000000ull
#define SETTLE_NS 2000000000ull

int ml_kernel_tree_begin(struct ml_kernel *kernel, ml_u32 pid)
{
	struct bpf_program *program = bpf_object__find_program_by_name(kernel->object, "process_fork");
	struct bpf_link *link = bpf_program__attach_tracepoint(program, "task", "task_newtask");
	ml_u32 one = 1;

	if (link)
		kernel->links[kernel->n_links++] = link;
	if (link && !bpf_map_update_elem(kernel->tree_fd, &pid, &one, BPF_ANY))
		return 0;
	ml_blocks_error(ML_REASON_TRACER_ERROR, "could not follow the command's processes: %s (run as root)", strerror(errno));
	return -1;
}

ml_u32 ml_kernel_tree_sweep(const struct ml_kernel *kernel)
{
	ml_u32 pid, next, n = 0;

	for (bool is_there = !bpf_map_get_next_key(kernel->tree_fd, NULL, &pid); is_there; pid = next) {
		is_there = !bpf_map_get_next_key(kernel->tree_fd, &pid, &next);
		if (ml_process_has_ended(pid, -1))
			bpf_map_delete_elem(kernel->tree_fd, &pid);
		else
			n++;
	}
	return n;
}

static ml_u64 freed_objects(const struct ml_kernel *kernel)
{
	ml_u64 sum = 0;

	for (ml_u32 slot = 0; slot < ML_KERNEL_KEY_SLOTS; slot++)
		sum += kernel->keys[slot].free_objects;
	return sum;
}

void ml_kernel_tree_settle(const struct ml_kernel *kernel, void (*on_pause)(void *context), void *context)
{
	ml_u64 begin = ml_clock_ns(), last_free = begin, freed = freed_objects(kernel);

	syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0); /* a grace period; where it is refused, the quiet has to do */
	for (ml_u64 now = begin; now - begin < SETTLE_NS && now - last_free < QUIET_NS; now = ml_clock_ns()) {
		ml_u64 sum = freed_objects(kernel);

		if (sum != freed)
			last_free = now;
		freed = sum;
		poll(NULL, 0, PAUSE_MS);
		on_pause(context);
	}
}
