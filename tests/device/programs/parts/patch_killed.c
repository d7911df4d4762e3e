// SPDX-License-Identifier: Apache-2.0
/*
 * The agent that changes code ends at each of its writes in turn, and the kernel refuses writes through /proc/PID/mem: the jump is there
 * or not, never a part of it. Writes what does not hold.
 */
#include "../../../support/programs/libc.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>

#include "agent_stubs.h"

#include "agent/inject/patch.h"

#define JUMP_BYTES 5
#define JUMP_AT { 62, 4096 - JUMP_BYTES, 4096 - 2 } /* in another word, at the end of its page, on two pages */

static int n_left; /* writes before the end */

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t at)
{
	(void)fd, (void)bytes, (void)n, (void)at;
	errno = EIO;
	return -1;
}

long __real_ptrace(long request, ...);

long __wrap_ptrace(long request, pid_t pid, void *address, void *data)
{
	if (request == PTRACE_POKETEXT && !n_left--)
		_exit(9);
	return __real_ptrace(request, pid, address, data);
}

void ml_stop_times_add(struct ml_stop_times *times, ml_u32 kind, ml_u64 stopped_ns, ml_u32 n_threads)
{
	(void)times, (void)kind, (void)stopped_ns, (void)n_threads;
}

int ml_refuse(struct ml_refusal *refusal, const char *format, ...)
{
	snprintf(refusal->text, sizeof(refusal->text), "%s", format);
	return -1;
}

int ml_inject_refuse_stop(pid_t pid, int error, struct ml_refusal *refusal)
{
	return (void)pid, ml_refuse(refusal, strerror(error));
}

bool ml_inject_is_traced(pid_t pid)
{
	return (void)pid, false;
}

pid_t ml_inject_child_in_memory(pid_t pid)
{
	return (void)pid, 0;
}

bool ml_code_agrees(const ml_u8 *there, const ml_u8 *in_file, size_t n)
{
	return !memcmp(there, in_file, n);
}

static bool is(pid_t pid, ml_u64 address, const ml_u8 *bytes)
{
	ml_u8 there[JUMP_BYTES] = { 0 };
	char path[32];
	int memory;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	memory = open(path, O_RDONLY);
	if (pread(memory, there, sizeof(there), (off_t)address) != sizeof(there))
		puts("the code cannot be read");
	close(memory);
	return !memcmp(there, bytes, sizeof(there));
}

/* Returns false once the change ends before its n-th write. */
static bool check(const struct ml_patches *patches, bool is_apply, int n)
{
	const struct ml_patch *patch = patches->patches;
	struct ml_patch_result result;
	pid_t target = fork(), agent;
	int status;

	if (!target) {
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
		for (;;)
			pause();
	}
	n_left = 1000;
	if (!is_apply && ml_patch_change(target, patches, true, &result))
		printf("no patch: %s\n", result.refusal.text);
	agent = fork();
	if (!agent) {
		n_left = n;
		if (ml_patch_change(target, patches, is_apply, &result) && puts(result.refusal.text) > 0)
			fflush(stdout);
		_exit(0);
	}
	waitpid(agent, &status, 0);
	if (is(target, patch->address, patch->expected) == is(target, patch->address, patch->patch))
		printf("%s: part of a jump after %d writes\n", is_apply ? "apply" : "revert", n);
	kill(target, SIGKILL);
	waitpid(target, NULL, 0);
	return WEXITSTATUS(status) == 9;
}

int main(void)
{
	static const int at[] = JUMP_AT;
	ml_u8 *code = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ml_patches *patches = calloc(1, sizeof(*patches));
	struct ml_patch *patch = patches->patches;

	patches->n = 1;
	patch->trampoline = (ml_u64)(uintptr_t)(code + 4096 + 1024);
	patch->n_bytes = JUMP_BYTES;
	patch->n_code = 24;
	memset(patch->expected, 0x90, JUMP_BYTES);
	memset(patch->patch, 0xe9, JUMP_BYTES);
	memset(patch->code, 0xcc, patch->n_code);
	memset(code, 0x90, 4096 + 512);
	mprotect(code, 8192, PROT_READ | PROT_EXEC);
	for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
		patch->address = (ml_u64)(uintptr_t)(code + at[i]);
		for (int is_apply = 0; is_apply < 2; is_apply++) {
			int n = 0;

			while (check(patches, is_apply, n))
				n++;
			if (!n)
				puts("nothing was written");
		}
	}
	free(patches);
	return 0;
}
