/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a process that never comes, by userfaultfd(2), beside memory that is there. Writes what does not hold. */
#include "../../../support/programs/libc.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "agent/process/patient_read.h"
#include "agent/protocol/blocks.h"
#include "checks.h"

#define BYTES (256u << 10)
#define ENDLESS_S 60 /* SIGALRM then ends the program: a read is waited for */

static char *there, *missing;
static int n_gaps;

int ml_blocks_gap(const char *condition_and_answer, const char *format, ...)
{
	(void)condition_and_answer, (void)format;
	return n_gaps++, 0;
}

/* In the process: whatever reads `missing` waits for as long as it lives. */
static int make_missing(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register all = { .range = { (size_t)missing, BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	return fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &all);
}

static pid_t start_process(void)
{
	int ends[2];
	char failed = 1;
	pid_t pid;

	check(!pipe(ends), "no pipe");
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		failed = (char)make_missing();
		if (write(ends[1], &failed, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	check(read(ends[0], &failed, 1) == 1, "no process");
	close(ends[0]);
	close(ends[1]);
	return failed ? -1 : pid;
}

int main(void)
{
	static char into[BYTES];
	pid_t first, second, reading;

	there = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	missing = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(there, 7, BYTES);
	first = start_process();
	second = start_process();
	if (first < 0 || second < 0) {
		puts("no userfaultfd(2)");
		return 0;
	}
	alarm(ENDLESS_S);
	check(!ml_patient_read((ml_u32)first, (size_t)there, into, BYTES) && !memcmp(into, there, BYTES), "other bytes");
	check(ml_patient_read((ml_u32)first, 8, into, 8) && errno == EFAULT, "memory that is not there was read");
	check(ml_patient_read((ml_u32)first, (size_t)missing, into, 8) && errno == ETIMEDOUT,
	      "memory that does not come was read");
	check(n_gaps == 1, "it was not reported");
	check(ml_patient_read((ml_u32)first, (size_t)there, into, 8), "its process was read again");
	check(!ml_patient_read((ml_u32)second, (size_t)there, into, 8), "others are not read any more");
	check(waitpid(-1, NULL, WNOHANG) == 0, "the reader is met by a wait for others");
	reading = fork(); /* as the keeper is, of the agent */
	if (!reading)
		_exit(ml_patient_read((ml_u32)second, (size_t)there, into, 8) != 0);
	check(!ml_patient_read((ml_u32)second, (size_t)there, into, 8), "not beside a fork");
	int status = 1;
	waitpid(reading, &status, 0);
	check(!status, "not in a fork");
	kill(first, SIGKILL);
	kill(second, SIGKILL);
	return 0;
}
