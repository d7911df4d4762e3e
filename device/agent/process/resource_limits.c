// SPDX-License-Identifier: Apache-2.0
#include "agent/process/resource_limits.h"

#include <sys/resource.h>

void ml_limits_raise_descriptors(ml_u32 wanted)
{
	struct rlimit limit, more;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	more.rlim_max = limit.rlim_max < wanted ? wanted : limit.rlim_max;
	more.rlim_cur = more.rlim_max;
	if (!setrlimit(RLIMIT_NOFILE, &more))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

void ml_limits_raise_memlock(void)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
}
