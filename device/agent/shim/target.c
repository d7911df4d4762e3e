// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/target.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Both sides compute offsets by the same source. */
#include "preload/segment/segment.c"

#define SEALS_NEEDED (F_SEAL_SHRINK | F_SEAL_GROW)

/*
 * Of any other file, a page that is missing would kill the agent by SIGBUS: one that can shrink, or one of huge pages, of which the
 * machine may have none left. Seals are checked first: the file system of a file without seals could block the other calls.
 */
static bool is_sound(int fd, ml_u64 bytes)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs system;
	struct stat status;

	return seals >= 0 && (seals & SEALS_NEEDED) == SEALS_NEEDED && !fstatfs(fd, &system) && system.f_type == TMPFS_MAGIC &&
	       !fstat(fd, &status) && S_ISREG(status.st_mode) && (ml_u64)status.st_size == bytes;
}

/* The process may reserve less than offered. Returns false if it asks for more. */
static bool agree(struct ml_settings *settings, const struct ml_settings *asked)
{
	if (asked->n_threads > settings->n_threads || asked->n_chunks > settings->n_chunks ||
	    asked->max_live > settings->max_live)
		return false;
	settings->n_threads = asked->n_threads;
	settings->n_chunks = asked->n_chunks;
	settings->max_live = asked->max_live;
	return true;
}

static bool map_memory(struct ml_preload_target *target, const struct ml_settings *settings)
{
	void *base;

	if (ml_view_set(&target->view, NULL, settings) || !is_sound(target->memory_fd, target->view.bytes))
		return false;
	target->tails = calloc(settings->n_threads, sizeof(*target->tails));
	base = mmap(NULL, target->view.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, target->memory_fd, 0);
	return base != MAP_FAILED && !ml_view_set(&target->view, base, settings) && target->tails;
}

struct ml_preload_target *ml_preload_target_create(int *memory_fd, ml_u32 pid, ml_u32 index, const struct ml_settings *offered,
						   const struct ml_settings *asked)
{
	struct ml_preload_target *target = calloc(1, sizeof(*target));
	struct ml_settings settings = *offered;

	if (!target)
		return NULL;
	*target = (struct ml_preload_target){
		.pid = pid, .index = index, .memory_fd = *memory_fd, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0)
	};
	*memory_fd = -1;
	if (agree(&settings, asked) && map_memory(target, &settings))
		return target;
	ml_preload_target_destroy(target);
	return NULL;
}

void ml_preload_target_destroy(struct ml_preload_target *target)
{
	if (!target)
		return;
	ml_preload_target_drop_maps(target);
	if (target->view.segment)
		munmap(target->view.segment, target->view.bytes);
	if (target->memory_fd >= 0)
		close(target->memory_fd);
	if (target->pidfd >= 0)
		close(target->pidfd);
	free(target->tails);
	free(target);
}
