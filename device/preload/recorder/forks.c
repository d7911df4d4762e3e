// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/forks.h"

#include <sys/mman.h>

#include "preload/freestanding/syscalls.h"

#define WORDS_BYTES 4096u /* the smallest page size */

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14, commit d2cd9ede6e19 */
#endif

/* glibc, and bionic since API 23; musl has only the other name. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library)
	__attribute__((weak));
extern int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void)) __attribute__((weak));

static struct ml_forks_words *words;
static void (*leave_parent)(void);

static void on_child(void)
{
	*words = (struct ml_forks_words){ 0 }; /* where the kernel does not */
	leave_parent();
}

/* No library is passed: the shim is never unloaded. */
static int register_handler(void)
{
	if (__register_atfork)
		return !__register_atfork(NULL, NULL, on_child, NULL);
	return pthread_atfork && !pthread_atfork(NULL, NULL, on_child);
}

struct ml_forks_words *ml_forks_watch(void (*in_child)(void))
{
	long page = ML_MMAP(0, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	int is_wiped, is_handled;

	if (ml_is_error(page))
		return NULL;
	words = (struct ml_forks_words *)page;
	leave_parent = in_child;
	is_wiped = !ML_SYSCALL3(madvise, page, WORDS_BYTES, MADV_WIPEONFORK);
	is_handled = register_handler();
	if (is_wiped || is_handled) {
		ml_sandbox.own_pid = &words->own_pid;
		return words;
	}
	ML_SYSCALL2(munmap, page, WORDS_BYTES);
	return NULL;
}
