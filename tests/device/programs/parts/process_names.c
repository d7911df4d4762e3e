/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of /proc/PID about threads whose names look like other fields. Writes what does not hold. */
#include "../../../support/programs/libc.h"

#include "agent/process/proc_file.h"
#include "agent/process/thread_states.h"

static void check(bool holds, const char *name, const char *what)
{
	if (!holds)
		printf("%s: %s\n", name, what);
}

static void *check_as_thread(void *name)
{
	ml_u32 pid = (ml_u32)getpid(), tid = (ml_u32)syscall(SYS_gettid);
	char text[4096];

	prctl(PR_SET_NAME, name);
	check(ml_thread_letter(pid, tid) == 'R', name, "its thread does not run");
	check(!ml_thread_has_ended(pid, tid), name, "its thread has ended");
	check(!ml_process_has_ended(pid, -1), name, "its process has ended");
	check(ml_process_has_other_threads(pid), name, "its process has no other thread");
	snprintf(text, sizeof(text), "task/%u/status", tid);
	ml_proc_read((pid_t)pid, text, text, sizeof(text));
	check(ml_proc_field(text, "Tgid:\t", 10) == pid, name, "its process has another id");
	check(ml_proc_field(text, "TracerPid:\t", 10) == 0, name, "it is traced");
	check(ml_proc_field(text, "Nothing:\t", 10) == 0, name, "a missing field has a value");
	return NULL;
}

int main(void)
{
	const char *names[] = { "a) Z",
				") Z 1 1 1 1",
				"a) Z) X",
				")",
				"((",
				"a b\n) Z 0",
				"Tgid:\t1",
				"TracerPid:\t77",
				"\nTracerPid:\t7",
				"\x0c\x1d\xe2\x80\xa8\xff",
				"" };

	for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++) {
		char name[32];
		pthread_t thread;

		snprintf(name, sizeof(name), "%s", names[i]);
		prctl(PR_SET_NAME, name);
		pthread_create(&thread, NULL, check_as_thread, name);
		pthread_join(thread, NULL);
	}
	return 0;
}
