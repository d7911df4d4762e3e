// SPDX-License-Identifier: Apache-2.0
/* Blocks to which no plain pointer in a variable leads, each of a size (a prime) that names its case. No optimisation. */
#include "libc.h"
#include <ucontext.h>

#include "wipe.h"

#define HIDDEN 0x5555000000000000u

static uintptr_t hidden, tagged;
static void **in_mmap, **in_memfd;
static ucontext_t here, other;

static void coroutine(void)
{
	void *volatile own = calloc(1, 617); /* reachable: a coroutine's stack */

	swapcontext(&other, &here);
	free(own);
}

__attribute__((noinline)) static void make(void)
{
	uintptr_t *a = calloc(1, 521), *b = calloc(1, 523); /* definitely, both: an XOR list */
	int file = memfd_create("shared", 0);

	*a = (uintptr_t)b ^ HIDDEN;
	*b = (uintptr_t)a ^ HIDDEN;
	hidden = (uintptr_t)a ^ HIDDEN;
	tagged = (uintptr_t)calloc(1, 541) | 1; /* possibly: a tag in the lowest bit */
	in_mmap = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	in_mmap[3] = calloc(1, 547); /* reachable: mapped memory */
	if (ftruncate(file, 4096))
		_exit(1);
	in_memfd = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	in_memfd[3] = calloc(1, 569); /* reachable: shared memory */
	getcontext(&other);
	other.uc_stack.ss_sp = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	other.uc_stack.ss_size = 65536;
	makecontext(&other, coroutine, 0);
	swapcontext(&here, &other);
}

int main(void)
{
	make();
	wipe();
	_exit(0);
}
