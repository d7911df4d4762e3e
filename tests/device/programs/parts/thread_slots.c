// SPDX-License-Identifier: Apache-2.0
/*
 * A thread with the thread pointer of an ended one: its slot has its own tid, and others that find no slot leave it alone. Exit code 0:
 * all of this holds.
 */
#include "../../../support/programs/libc.h"

#include "preload/segment/thread.h"

#define OTHERS 6 /* more than slots */

static struct ml_view view;
static pthread_barrier_t all;
static unsigned long pointers[2];
static int failed;

static void check(int holds, int number)
{
	if (!holds)
		__atomic_fetch_or(&failed, 1 << number, __ATOMIC_RELAXED);
}

static struct ml_thread *slot_of_caller(void)
{
	struct ml_thread *thread = ml_thread_current(&view);

	check(thread == view.threads || thread->tid == (ml_u32)syscall(SYS_gettid), 0);
	return thread;
}

static void *first(void *argument)
{
	struct ml_thread *thread = slot_of_caller();

	pointers[0] = ml_thread_pointer();
	thread->is_recording = thread->is_inside = 1; /* it ends in a handler that has interrupted a call */
	return argument;
}

static void *second(void *argument)
{
	struct ml_thread *thread = slot_of_caller();

	check(!thread->is_recording && !thread->is_inside, 4);
	pointers[1] = ml_thread_pointer();
	pthread_barrier_wait(&all);
	pthread_barrier_wait(&all);
	check(thread != view.threads && slot_of_caller() == thread, 1);
	return argument;
}

static void *other(void *argument)
{
	pthread_barrier_wait(&all);
	slot_of_caller();
	pthread_barrier_wait(&all);
	return argument;
}

int main(void)
{
	const struct ml_settings settings = { .max_live = 1024, .n_threads = 4, .n_keys = 16, .ring_bytes = 1u << 16 };
	pthread_t ids[OTHERS + 1];
	void *base;

	if (ml_view_set(&view, NULL, &settings))
		return 100;
	base = mmap(NULL, view.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED || ml_view_set(&view, base, &settings))
		return 101;
	view.segment->pid = (ml_u32)getpid();
	ml_thread_find_tid_offset();
	pthread_create(ids, NULL, first, NULL);
	pthread_join(ids[0], NULL);
	pthread_barrier_init(&all, NULL, OTHERS + 1);
	pthread_create(ids, NULL, second, NULL);
	for (int i = 1; i <= OTHERS; i++)
		pthread_create(&ids[i], NULL, other, NULL);
	for (int i = 0; i <= OTHERS; i++)
		pthread_join(ids[i], NULL);
	check(pointers[0] == pointers[1], 2);
	check(ml_thread_tid_offset != 0, 3);
	return failed;
}
