// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/forks.h"

#include <stddef.h>
#include <sys/mman.h>

#include "preload/freestanding/syscalls.h"

#define WORD_BYTES 4096u /* the smallest page size */

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14, commit d2cd9ede6e19 */
#endif

/* glibc, and bionic since API 23; musl has only the other name. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library)
	__attribute__((weak));
extern int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void)) __attribute__((weak));

static int *word;

static void clear_in_child(void)
{
	__atomic_store_n(word, 0, __ATOMIC_RELAXED);
	*ml_sandbox.own_pid = 0;
}

/* No library is passed: the shim is never unloaded. */
static int register_handler(void)
{
	if (__register_atfork)
		return !__register_atfork(NULL, NULL, clear_in_child, NULL);
	return pthread_atfork && !pthread_atfork(NULL, NULL, clear_in_child);
}

int *ml_forks_watched_word(void)
{
	long page = ML_MMAP(0, WORD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	if (ml_is_error(page))
		return NULL;
	word = (int *)page;
	ml_sandbox.own_pid = (ml_u32 *)page + 1;
	if (!ML_SYSCALL3(madvise, page, WORD_BYTES, MADV_WIPEONFORK) || register_handler())
		return word;
	ml_sandbox.own_pid = NULL;
	ML_SYSCALL2(munmap, page, WORD_BYTES);
	return NULL;
}
