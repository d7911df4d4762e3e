// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/self_test.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/probes/probed_file.h"
#include "agent/protocol/blocks.h"

/* Timeout for the counted call, on a busy machine. */
#define TIMEOUT_MS 10000
/* Not NULL, aligned like a block, and in the page that is never mapped. */
#define NO_BLOCK 16ul

static const int signals[] = { SIGTRAP, SIGSEGV, SIGBUS, SIGILL };
#define N_SIGNALS (sizeof(signals) / sizeof(signals[0]))

static sigjmp_buf test_return;
static void *volatile probed_code;

static const struct ml_probe *free_probe(const struct ml_config *config)
{
	for (int i = 0; i < config->n_probes; i++)
		if (config->probes[i].function == ML_FN_FREE)
			return &config->probes[i];
	return NULL;
}

/* x86_64: the first trap comes with the call itself done and the probed instruction still to be executed. */
static void return_to_test(int signal, siginfo_t *info, void *context)
{
	(void)context;
#if defined(__x86_64__)
	if (signal == SIGTRAP && info->si_addr == probed_code)
		return;
#else
	(void)info;
#endif
	siglongjmp(test_return, signal);
}

#if !defined(__aarch64__)
static bool fence(char *memory, size_t bytes, const char *code)
{
	(void)memory, (void)bytes, (void)code;
	return true;
}
#endif

#if defined(__x86_64__)
/*
 * Calls the probed instruction with the trap flag set: the processor stops after each instruction (Intel SDM 3B, 17.3.1.4), so
 * that the code cannot run on without the rest of its library.
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
#elif defined(__aarch64__)
/*
 * User mode has no trap flag. Every other instruction of these pages becomes a breakpoint: the one after the probed instruction,
 * and the target of any short branch. The target of a farther branch is not mapped.
 */
static bool fence(char *memory, size_t bytes, const char *code)
{
	const unsigned int brk = 0xd4200000; /* brk #0: not the kernel's own (arch/arm64/include/asm/brk-imm.h) */

	if (mprotect(memory, bytes, PROT_READ | PROT_WRITE))
		return false;
	for (size_t at = 0; at < bytes; at += sizeof(brk))
		if (memory + at != code)
			memcpy(memory + at, &brk, sizeof(brk));
	__builtin___clear_cache(memory, memory + bytes);
	return !mprotect(memory, bytes, PROT_READ | PROT_EXEC);
}

static void execute(void *code)
{
	__asm__ volatile("mov x0, %0\n\t"
			 "blr %1"
			 :
			 : "r"(NO_BLOCK), "r"(code)
			 : "x0", "x30", "memory", "cc");
}
#else
static void execute(void *code)
{
	(void)code;
}
#endif

/* A 32-bit agent has no BPF programs. */
bool ml_self_test_possible(const struct ml_config *config)
{
	return sizeof(void *) == 8 && free_probe(config);
}

/* Maps the file from the page of the probed instruction on, as a program does: with the breakpoint of the probe. */
static char *map_pages(const struct ml_probed_file *file, const struct ml_probe *probe, size_t page, size_t bytes)
{
	char *memory =
		mmap(NULL, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE, file->fd, (off_t)(probe->entry_offset & ~(page - 1)));

	return memory == MAP_FAILED ? NULL : memory;
}

/* Two pages, or one if the file ends there. */
static size_t pages_bytes(const struct ml_probed_file *file, const struct ml_probe *probe, size_t page)
{
	return file->version.bytes <= (probe->entry_offset | (page - 1)) + 1 ? page : 2 * page;
}

static char *map_code(const struct ml_probed_file *file, const struct ml_probe *probe, size_t page)
{
	size_t bytes = pages_bytes(file, probe, page), at = probe->entry_offset & (page - 1);
	char *memory = map_pages(file, probe, page, bytes);

	if (memory &&
	    !fence(memory, bytes, memory + at)) { /* SELinux forbids it (execmod): the code after the probe will fault soon */
		munmap(memory, bytes);
		memory = map_pages(file, probe, page, bytes);
	}
	return memory ? memory + at : NULL;
}

void ml_self_test_call(const struct ml_config *config)
{
	struct sigaction before[N_SIGNALS], catch = { .sa_sigaction = return_to_test, .sa_flags = SA_SIGINFO };
	const struct ml_probe *probe = free_probe(config);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct ml_probed_file *file = probe ? &config->files[probe->file] : NULL;
	/* this child was forked before the agent opened the file */
	void *code = probe && !ml_probed_file_open(file) ? map_code(file, probe, page) : NULL;

	if (!code)
		return;
	probed_code = code;
	for (size_t i = 0; i < N_SIGNALS; i++)
		sigaction(signals[i], &catch, &before[i]);
	if (!sigsetjmp(test_return, 1))
		execute(code);
	for (size_t i = 0; i < N_SIGNALS; i++)
		sigaction(signals[i], &before[i], NULL);
	munmap((void *)((size_t)code & ~(page - 1)), pages_bytes(file, probe, page));
}

ml_u64 ml_self_test_run(struct ml_child *child, const struct ml_bpf *bpf)
{
	ml_u64 calls;

	if (!ml_spawn_self_test(child))
		for (int ms = 0; ms < TIMEOUT_MS; ms++, usleep(1000))
			if ((calls = ml_bpf_counter(bpf, ML_BPF_UNTRACKED_FREES)))
				return calls;
	ml_blocks_error(ML_REASON_TRACER_ERROR,
			"the probes are placed, but a test call of free() was not counted within %d ms (see "
			"memleak-android doctor, or use --tracer preload)",
			TIMEOUT_MS);
	return 0;
}
