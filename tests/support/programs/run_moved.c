// SPDX-License-Identifier: Apache-2.0
/*
 * Runs each case of the standard input twice, as it was and moved, from the same registers and memory, until a trap or
 * a fault, and says where the two ended differently. One line per difference, then "ran N faults F died D".
 *
 * A case is arbitrary code, so each of the two runs has a process of its own that can make no system call: what it does
 * to its segments, to other memory or to the handler's stack ends with it. One that dies is compared by how it died.
 */
#include "libc.h"
#include <linux/seccomp.h>
#include <ucontext.h>

#define CODE_BYTES 0x40000
#define DATA 0x210000000ul
#define DATA_BYTES 0x4000
#define IMAGE_BYTES 256
#define CODES_MAX 8
#define N_GENERAL 16 /* r8 … r15 rdi rsi rbp rbx rdx rax rcx rsp, as in gregset_t */

struct moved_case {
	uint64_t function, trampoline, start, moved_start;
	uint8_t before[IMAGE_BYTES], after[IMAGE_BYTES], moved[IMAGE_BYTES];
	uint64_t registers[N_GENERAL], flags, seed;
};

struct outcome {
	int signal; /* that ended the code; 0: its process died first, with `death` as wait() has it */
	int death;
	uint64_t fault_address, pc, registers[N_GENERAL], flags;
	struct _libc_xmmreg vectors[16];
	uint8_t data[DATA_BYTES];
};

static enum { STARTING, RUNNING, ENDED } phase;
static const struct moved_case *current;
static uint64_t start;
static struct outcome *outcome; /* in memory shared with the parent */

static struct code {
	uint64_t address;
	uint8_t *writable;
} codes[CODES_MAX];
static int n_codes;

static uint8_t *writable(uint64_t address)
{
	int i = 0;

	while (address - codes[i].address >= CODE_BYTES)
		i++;
	return codes[i].writable + (address - codes[i].address);
}

static uint64_t mixed(uint64_t *state)
{
	*state = *state * 6364136223846793005ul + 1442695040888963407ul;
	return *state ^ *state >> 29;
}

/* State that a case can read must be equal in both runs: the parent's copying changes the wider registers. */
static void clear_wider_vectors(struct _libc_fpstate *state)
{
	const uint64_t avx_and_avx512 = 0xe4;
	struct _xstate *extended = (struct _xstate *)state;
	uint32_t magic;

	memcpy(&magic, (char *)state + 464, sizeof(magic)); /* struct _fpx_sw_bytes */
	if (magic == FP_XSTATE_MAGIC1)
		extended->xstate_hdr.xstate_bv &= ~avx_and_avx512;
}

static void begin(mcontext_t *context)
{
	uint64_t state = current->seed;

	memcpy(context->gregs, current->registers, sizeof(current->registers));
	context->gregs[REG_RIP] = (greg_t)start;
	context->gregs[REG_EFL] = (greg_t)current->flags;
	for (unsigned i = 0; i < sizeof(context->fpregs->_xmm) / 4; i++)
		((uint32_t *)context->fpregs->_xmm)[i] = (uint32_t)mixed(&state);
	clear_wider_vectors(context->fpregs);
}

/* Not of libc, which would use the thread's storage: the case may have changed where fs leads. */
static _Noreturn void leave(int status)
{
	for (;;)
		__asm__ volatile("syscall" ::"a"(SYS_exit), "D"(status) : "rcx", "r11", "memory");
}

static _Noreturn void end(const mcontext_t *context, int signal, const siginfo_t *info)
{
	outcome->fault_address = signal == SIGTRAP ? 0 : (uint64_t)info->si_addr;
	memcpy(outcome->registers, context->gregs, sizeof(outcome->registers));
	outcome->pc = (uint64_t)context->gregs[REG_RIP];
	outcome->flags = (uint64_t)context->gregs[REG_EFL];
	memcpy(outcome->vectors, context->fpregs->_xmm, sizeof(outcome->vectors));
	memcpy(outcome->data, (void *)DATA, DATA_BYTES);
	outcome->signal = signal;
	leave(0);
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
	mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;

	if (phase == RUNNING) {
		phase = ENDED;
		end(machine, signal, info);
	} else if (phase == ENDED) {
		leave(9);
	} else if (signal == SIGTRAP) {
		phase = RUNNING;
		begin(machine);
	}
}

/* In a process of its own. It may spend 20 ms of processor time: code that loops is ended; and, handler and all, 2 s. */
static _Noreturn void run_here(void)
{
	const struct itimerval tick = { { 0, 20000 }, { 0, 20000 } };
	const struct rlimit no_core = { 0, 0 }, processor = { 2, 2 };
	uint64_t state = current->seed;

	for (unsigned i = 0; i < DATA_BYTES / 8; i++) { /* half of them lead into the code, for what returns there */
		uint64_t word = mixed(&state);

		((uint64_t *)DATA)[i] = word & 1 ? current->function + 0x1000 + (word >> 40 & 0xff0) : word;
	}
	for (int fd = 0; fd < 3; fd++) /* what is still allowed below, but for the signal's return, needs one */
		close(fd);
	setrlimit(RLIMIT_CORE, &no_core);
	setrlimit(RLIMIT_CPU, &processor);
	setitimer(ITIMER_VIRTUAL, &tick, NULL);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		leave(8);
	__asm__ volatile("int3" ::: "memory", "cc");
	leave(7); /* by no way */
}

/* Gives 0 where no process can be had. */
static int run(const struct moved_case *one, const uint8_t *image, uint64_t from, struct outcome *to)
{
	int status;
	pid_t pid;

	memcpy(writable(one->function), image, IMAGE_BYTES);
	memset(to, 0, sizeof(*to));
	current = one;
	start = from;
	outcome = to;
	pid = fork();
	if (pid == 0)
		run_here();
	if (pid < 0 || waitpid(pid, &status, 0) != pid || (WIFEXITED(status) && WEXITSTATUS(status) == 8))
		return perror("fork, waitpid or seccomp"), 0;
	to->death = to->signal ? 0 : status;
	return 1;
}

/* The reported fault address depends on the code's address; check only that it is in the moved code. */
static int compare(const struct moved_case *one, const struct outcome *before, const struct outcome *after)
{
	int is_fault = before->signal != SIGTRAP;
	int is_moved_pc = after->pc - one->trampoline < IMAGE_BYTES;

	if (before->signal != after->signal || before->death != after->death)
		return 1;
	if (before->signal == SIGVTALRM || before->death)
		return 0;
	if (before->pc != after->pc && !(is_fault && is_moved_pc))
		return 2;
	if (before->fault_address != after->fault_address && !(after->signal == SIGILL || after->signal == SIGFPE))
		return 3;
	if (memcmp(before->registers, after->registers, sizeof(before->registers)))
		return 4;
	if ((before->flags ^ after->flags) & 0xcd5) /* CF PF AF ZF SF DF OF */
		return 5;
	if (memcmp(before->vectors, after->vectors, sizeof(before->vectors)))
		return 6;
	return memcmp(before->data, after->data, DATA_BYTES) ? 7 : 0;
}

static int map(uint64_t address, size_t size, int rights, int fd)
{
	void *got = mmap((void *)address, size, rights, (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_FIXED_NOREPLACE,
			 fd, 0);

	return got == (void *)address ? 1 : (perror("mmap"), 0);
}

/* Executable at its address, writable elsewhere: what a case writes into code by chance would be there in its second run. */
static int map_code(uint64_t address)
{
	struct code *one = &codes[n_codes++];
	int fd = memfd_create("code", 0);

	*one = (struct code){ address, mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) };
	if (fd < 0 || ftruncate(fd, CODE_BYTES) || one->writable == MAP_FAILED)
		return perror("memfd"), 0;
	memset(one->writable, 0xcc, CODE_BYTES);
	return map(address, CODE_BYTES, PROT_READ | PROT_EXEC, fd) && close(fd) == 0;
}

static int prepare(char **argv, int n)
{
	static uint8_t signal_stack[65536];
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART };
	stack_t stack = { .ss_sp = signal_stack, .ss_size = sizeof(signal_stack) };
	const int signals[] = { SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGVTALRM };
	unsigned long address;

	sigaltstack(&stack, NULL);
	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		sigaction(signals[i], &action, NULL);
	for (int i = 1; i < n; i++)
		if (i > CODES_MAX || sscanf(argv[i], "%lx", &address) != 1 || !map_code(address))
			return 0;
	return map(DATA, DATA_BYTES, PROT_READ | PROT_WRITE, -1);
}

static int run_all(struct outcome *before, struct outcome *after)
{
	static struct moved_case one;
	unsigned n = 0, n_faults = 0, n_dead = 0;

	while (fread(&one, sizeof(one), 1, stdin) == 1) {
		int difference;

		memcpy(writable(one.trampoline), one.moved, IMAGE_BYTES);
		if (!run(&one, one.before, one.start, before) || !run(&one, one.after, one.moved_start, after))
			return 0;
		difference = compare(&one, before, after);
		if (difference)
			printf("case %u differs in %d: signal %d %d death %#x %#x pc %lx %lx\n", n, difference, before->signal,
			       after->signal, before->death, after->death, before->pc, after->pc);
		n++;
		n_faults += before->signal != SIGTRAP;
		n_dead += before->death != 0;
	}
	printf("ran %u faults %u died %u\n", n, n_faults, n_dead);
	return 1;
}

int main(int argc, char **argv)
{
	struct outcome *outcomes = mmap(NULL, 2 * sizeof(*outcomes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return outcomes != MAP_FAILED && prepare(argv, argc) && run_all(&outcomes[0], &outcomes[1]) ? 0 : 1;
}
