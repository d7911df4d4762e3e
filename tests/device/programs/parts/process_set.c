/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's set of processes, asked about some that end in several ways. Writes what does not hold. */
#include "agent/process/process_set.h"

#include "agent/process/thread_states.h"
#include "checks.h"

#define S 1000000000ull

static ml_u32 ended; /* the only one: all others have threads that go on */

bool ml_process_has_ended(ml_u32 pid, int pidfd)
{
	return (void)pidfd, pid == ended;
}

bool ml_process_has_other_threads(ml_u32 pid)
{
	return pid != ended;
}

static void check_process_without_first_thread(struct ml_process_set *set)
{
	ml_process_set_add(set, 6);
	ml_process_set_leave(set, 6, 1 * S);
	check(!ml_process_set_find_ended(set, false), "it is forgotten");
	check(!ml_process_set_goes_on(set, 6, 1 * S), "it goes on at once");
	check(ml_process_set_goes_on(set, 6, 3 * S), "it does not go on");
	check(!ml_process_set_goes_on(set, 6, 4 * S), "it goes on twice");
	ended = 6;
	check(ml_process_set_find_ended(set, false), "its end is not found");
	check(ml_process_set_has(set, 6), "it is forgotten before what it did is drained");
	ml_process_set_drop_ended(set);
	check(!ml_process_set_has(set, 6), "it is not forgotten");
}

static void check_exec_by_another_thread(struct ml_process_set *set)
{
	ml_process_set_add(set, 7);
	check(!ml_process_set_stay(set, 7), "an exec by the first thread is one by another");
	ml_process_set_leave(set, 7, 1 * S);
	check(ml_process_set_stay(set, 7), "an exec by another thread is one by the first");
	ml_process_set_leave(set, 7, 2 * S);
	check(ml_process_set_goes_on(set, 7, 4 * S) && ml_process_set_has_left(set, 7), "it does not go on without its first thread");
	check(ml_process_set_stay(set, 7), "an exec long after the first thread's end is one by the first");
	ml_process_set_remove(set, 7);
}

static void check_lost_records(struct ml_process_set *set)
{
	ml_process_set_add(set, 8);
	ml_process_set_add(set, 9);
	ended = 8;
	check(!ml_process_set_find_ended(set, false), "an unannounced end is found");
	check(ml_process_set_find_ended(set, true), "an end whose record was lost is not found");
	ml_process_set_drop_ended(set);
	check(!ml_process_set_has(set, 8) && ml_process_set_has(set, 9), "the wrong one is forgotten");
}

int main(void)
{
	struct ml_process_set set = { 0 };

	check_process_without_first_thread(&set);
	check_exec_by_another_thread(&set);
	check_lost_records(&set);
	ml_process_set_destroy(&set);
	return 0;
}
