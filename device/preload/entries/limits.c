// SPDX-License-Identifier: Apache-2.0
/*
 * The segment takes gigabytes of address space, of which few become memory. A program that limits its address space, or
 * locks all of its memory, does not mean the segment: the limit is set by the segment's size higher, and the segment is not
 * filled.
 */
#if __SIZEOF_LONG__ == 8

#include <sys/mman.h>
#include <linux/resource.h>

#include "preload/entries/originals.h"
#include "preload/freestanding/mappings.h"
#include "preload/freestanding/syscalls.h"
#include "preload/recorder/recorder.h"

#define EXPORT __attribute__((visibility("default")))

#ifndef MCL_ONFAULT
#define MCL_ONFAULT 4 /* Linux 4.4 */
#endif

/* ---- the address space --------------------------------------------------------------------------------- */

static struct rlimit asked = { RLIM_INFINITY, RLIM_INFINITY };
static struct rlimit in_force = { RLIM_INFINITY, RLIM_INFINITY }; /* in place of what was asked */

static ml_u64 segment_bytes(void)
{
	const struct ml_view *view = ml_view_in_force();

	return view->segment ? view->bytes : 0;
}

static ml_u64 widened(ml_u64 limit, ml_u64 bytes, ml_u64 most)
{
	ml_u64 wide = limit > RLIM_INFINITY - bytes ? RLIM_INFINITY : limit + bytes;

	return limit > most || wide < most ? wide : most; /* more than the old hard limit is for the kernel to refuse */
}

static void narrow(struct rlimit *limit)
{
	if (limit->rlim_cur == in_force.rlim_cur)
		limit->rlim_cur = asked.rlim_cur;
	if (limit->rlim_max == in_force.rlim_max)
		limit->rlim_max = asked.rlim_max;
}

static long set_limit(const struct rlimit *wanted)
{
	struct rlimit before, wide;
	ml_u64 bytes = segment_bytes();
	long error = ML_SYSCALL4(prlimit64, 0, RLIMIT_AS, NULL, &before);

	if (error)
		return error;
	wide.rlim_max = widened(wanted->rlim_max, bytes, before.rlim_max);
	wide.rlim_cur = widened(wanted->rlim_cur, bytes, wide.rlim_max);
	error = ML_SYSCALL4(prlimit64, 0, RLIMIT_AS, &wide, NULL);
	if (!error) {
		asked = *wanted;
		in_force = wide;
	}
	return error;
}

/* prlimit(2) for the address space of this process. The pointers are the program's, and may lead nowhere. */
static int limit_address_space(const struct rlimit *new, struct rlimit *old)
{
	struct rlimit wanted;
	long error = 0;

	if (new && ml_read_memory(&wanted, (ml_u64)(unsigned long)new, sizeof(wanted)) != sizeof(wanted))
		return ml_fail(EFAULT);
	if (old)
		error = ML_SYSCALL4(prlimit64, 0, RLIMIT_AS, NULL, old);
	if (!error && old)
		narrow(old);
	if (!error && new)
		error = set_limit(&wanted);
	return error ? ml_fail((int)-error) : 0;
}

void ml_limits_restore(void)
{
	struct rlimit limit;

	if (asked.rlim_cur != in_force.rlim_cur && !ML_SYSCALL4(prlimit64, 0, RLIMIT_AS, NULL, &limit)) {
		narrow(&limit);
		ML_SYSCALL4(prlimit64, 0, RLIMIT_AS, &limit, NULL);
	}
}

static int is_ours(int pid, int resource)
{
	return resource == RLIMIT_AS && segment_bytes() && (!pid || pid == (int)ML_SYSCALL0(getpid)) &&
	       !ml_sandbox_forbids(__NR_prlimit64) && !ml_sandbox_forbids(__NR_process_vm_readv);
}

#define LIMIT(name, pid, resource, new, old, parameters, ...)                                                              \
	EXPORT int name parameters                                                                                         \
	{                                                                                                                  \
		if (ml_originals_ready() && ml_original.name && !is_ours(pid, resource))                                   \
			return ml_original.name(__VA_ARGS__);                                                              \
		if (is_ours(pid, resource))                                                                                \
			return limit_address_space(new, old);                                                              \
		return (int)ml_from_kernel(ml_kernel_call(__NR_prlimit64, pid, resource, (long)(new), (long)(old), 0, 0)); \
	}

LIMIT(getrlimit, 0, resource, NULL, limit, (int resource, struct rlimit *limit), resource, limit)
LIMIT(getrlimit64, 0, resource, NULL, limit, (int resource, struct rlimit *limit), resource, limit)
LIMIT(setrlimit, 0, resource, limit, NULL, (int resource, const struct rlimit *limit), resource, limit)
LIMIT(setrlimit64, 0, resource, limit, NULL, (int resource, const struct rlimit *limit), resource, limit)
LIMIT(prlimit, pid, resource, new, old, (int pid, int resource, const struct rlimit *new, struct rlimit *old), pid, resource,
      new, old)
LIMIT(prlimit64, pid, resource, new, old, (int pid, int resource, const struct rlimit *new, struct rlimit *old), pid, resource,
      new, old)

/* ---- locked memory ------------------------------------------------------------------------------------- */

/* Locks and fills it, as mlockall() had; what cannot be filled is left out there, too. */
static long lock_mapping(void *context, const struct ml_own_mapping_line *line)
{
	const struct ml_view *view = context;
	unsigned long segment = (unsigned long)view->segment;

	if (line->range.low < segment || line->range.low >= segment + view->bytes)
		ML_SYSCALL2(mlock, line->range.low, line->range.high - line->range.low);
	return 0;
}

static int lock_all(const struct ml_view *view, int flags)
{
	int result = ml_original.mlockall(MCL_CURRENT | MCL_ONFAULT);

	if (!result && flags & MCL_FUTURE)
		result = ml_original.mlockall(MCL_FUTURE);
	if (!result)
		ml_mappings_each(lock_mapping, (void *)view);
	ML_SYSCALL2(munlock, view->segment, view->bytes);
	return result;
}

EXPORT int mlockall(int flags)
{
	const struct ml_view *view = ml_view_in_force();

	if (!ml_originals_ready() || !ml_original.mlockall)
		return (int)ml_from_kernel(ml_kernel_call(__NR_mlockall, flags, 0, 0, 0, 0, 0));
	if (view->segment && (flags == MCL_CURRENT || flags == (MCL_CURRENT | MCL_FUTURE)) && !ml_sandbox_forbids(__NR_mlock))
		return lock_all(view, flags);
	return ml_original.mlockall(flags);
}

#endif
