// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "self_test.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blocks.h"

/* What the call may take until it is counted: the machine may be busy. */
#define PATIENCE_MS 10000
/* Not NULL, aligned like a block, and in the page that no process maps. */
#define NO_BLOCK 16ul

static const int signals[] = { SIGTRAP, SIGSEGV, SIGBUS, SIGILL };
#define N_SIGNALS (sizeof(signals) / sizeof(signals[0]))

static sigjmp_buf way_back;
static void *volatile probed_code;

static const struct ml_probe *free_probe(const struct ml_config *config)
{
	for (int i = 0; i < config->n_probes; i++)
		if (config->probes[i].function == ML_FN_FREE)
			return &config->probes[i];
	return NULL;
}

/* The first trap comes with the call itself done and the probed instruction still to be executed. */
static void return_to_test(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (signal == SIGTRAP && info->si_addr == probed_code)
		return;
	siglongjmp(way_back, signal);
}

#if defined(__x86_64__)
/*
 * Goes to the probe with the trap flag set: the processor stops after each instruction (Intel SDM 3B,
 * 17.3.1.4), so that the code leads nowhere without the rest of its library.
 */
static void execute(void *code)
{
	__asm__ volatile("mov %0, %%rdi\n\t"
			 "pushfq\n\t"
			 "orq $0x100, (%%rsp)\n\t"
			 "popfq\n\t"
			 "call *%1"
			 :
			 : "r"(NO_BLOCK), "r"(code)
			 : "rdi", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
}

bool ml_self_test_possible(const struct ml_config *config)
{
	return free_probe(config) != NULL;
}
#else
static void execute(void *code)
{
	(void)code;
}

bool ml_self_test_possible(const struct ml_config *config)
{
	(void)config;
	return false;
}
#endif

static void *map_code(const struct ml_probe *probe, size_t page)
{
	int fd = open(probe->path, O_RDONLY | O_CLOEXEC);
	char *memory;

	if (fd < 0)
		return NULL;
	memory = mmap(NULL, 2 * page, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, (off_t)(probe->entry_offset & ~(page - 1)));
	close(fd);
	return memory == MAP_FAILED ? NULL : memory + (probe->entry_offset & (page - 1));
}

void ml_self_test_call(const struct ml_config *config)
{
	struct sigaction before[N_SIGNALS], catch = { .sa_sigaction = return_to_test, .sa_flags = SA_SIGINFO };
	const struct ml_probe *probe = free_probe(config);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *code = probe ? map_code(probe, page) : NULL;

	if (!code)
		return;
	probed_code = code;
	for (size_t i = 0; i < N_SIGNALS; i++)
		sigaction(signals[i], &catch, &before[i]);
	if (!sigsetjmp(way_back, 1))
		execute(code);
	for (size_t i = 0; i < N_SIGNALS; i++)
		sigaction(signals[i], &before[i], NULL);
	munmap((void *)((size_t)code & ~(page - 1)), 2 * page);
}

ml_u64 ml_self_test_run(struct ml_child *child, const struct ml_bpf *bpf)
{
	ml_u64 calls;

	if (!ml_spawn_self_test(child))
		for (int ms = 0; ms < PATIENCE_MS; ms++, usleep(1000))
			if ((calls = ml_bpf_counter(bpf, ML_BPF_UNTRACKED_FREES)))
				return calls;
	ml_blocks_error(ML_REASON_TRACER_ERROR,
			"the probes are placed, but a test call of free() did not arrive within %d ms (see "
			"memleak-android doctor, or use --tracer preload)",
			PATIENCE_MS);
	return 0;
}
