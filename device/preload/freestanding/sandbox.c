// SPDX-License-Identifier: Apache-2.0
#include "preload/freestanding/sandbox.h"

#include <asm/errno.h>
#include <asm/unistd.h>

struct ml_sandbox ml_sandbox = { .allowed = { [0 ... ML_SYSTEM_CALLS / 32 - 1] = ~0u } };

static const unsigned short numbers[ML_OWN_CALLS] = {
#define NUMBER(name) __NR_##name,
	ML_OWN_CALLS_EACH(NUMBER)
};

long ml_sandbox_result(long number)
{
	if (number == __NR_getpid)
		return ml_sandbox.own_pid ? (long)*ml_sandbox.own_pid : 0;
	return number == __NR_gettid ? 0 : -ENOSYS;
}

ml_u64 ml_sandbox_forbidden(void)
{
	ml_u64 forbidden = 0;

	for (int i = 0; i < ML_OWN_CALLS; i++)
		forbidden |= (ml_u64)ml_sandbox_forbids(numbers[i]) << i;
	return forbidden;
}
