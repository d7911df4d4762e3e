// SPDX-License-Identifier: Apache-2.0
#include "preload/freestanding/seccomp_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>

#include "preload/freestanding/syscalls.h"

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#define ARCHITECTURE AUDIT_ARCH_ARM
#endif

/* The accumulator when an instruction is reached: its value is known if it is the same by every path. */
struct reached {
	ml_u32 value;
	ml_u8 is_reached, is_known;
};

struct filter {
	struct sock_filter code[BPF_MAXINSNS];
	struct reached at[BPF_MAXINSNS];
	ml_u32 n;
};

/* struct sock_fprog */
struct program {
	unsigned short n;
	const struct sock_filter *code;
};

static void reach(struct filter *filter, ml_u64 to, struct reached with)
{
	struct reached *at = &filter->at[to < filter->n ? to : 0];

	if (to >= filter->n)
		return; /* the kernel refuses such a program */
	with.is_known &= !at->is_reached || (at->is_known && at->value == with.value);
	with.is_reached = 1;
	*at = with;
}

/* struct seccomp_data has the number, the architecture, then addresses and arguments, which differ from call to call. */
static struct reached load(const struct sock_filter *code, ml_u32 number)
{
	if (code->code == (BPF_LD | BPF_W | BPF_ABS) && code->k == offsetof(struct seccomp_data, nr))
		return (struct reached){ number, 1, 1 };
	if (code->code == (BPF_LD | BPF_W | BPF_ABS) && code->k == offsetof(struct seccomp_data, arch))
		return (struct reached){ ARCHITECTURE, 1, 1 };
	return (struct reached){ 0, 1, 0 };
}

/* Returns whether the jump is taken: 1, 0, or -1 for both. */
static int jumps(const struct sock_filter *code, struct reached a)
{
	if (!a.is_known || BPF_SRC(code->code) != BPF_K)
		return -1;
	switch (BPF_OP(code->code)) {
	case BPF_JEQ: return a.value == code->k;
	case BPF_JGT: return a.value > code->k;
	case BPF_JGE: return a.value >= code->k;
	default: /* BPF_JSET */ return (a.value & code->k) != 0;
	}
}

static struct reached compute(const struct sock_filter *code, struct reached a)
{
	if (BPF_SRC(code->code) != BPF_K || BPF_OP(code->code) != BPF_AND)
		a.is_known = 0;
	a.value &= code->k;
	return a;
}

static void jump(struct filter *filter, ml_u32 from, struct reached a)
{
	const struct sock_filter *code = &filter->code[from];
	ml_u64 next = (ml_u64)from + 1;
	int is_taken;

	if (BPF_OP(code->code) == BPF_JA)
		return reach(filter, next + code->k, a);
	is_taken = jumps(code, a);
	if (is_taken)
		reach(filter, next + code->jt, a);
	if (is_taken != 1)
		reach(filter, next + code->jf, a);
}

/* An error is harmless, but for 0, which looks like success, and for calls that never fail. */
static int lets_pass(const struct sock_filter *code, ml_u32 number)
{
	ml_u32 action = code->k & SECCOMP_RET_ACTION_FULL;
	int may_fail = code->k & SECCOMP_RET_DATA && number != __NR_getpid && number != __NR_gettid;

	return BPF_RVAL(code->code) == BPF_K &&
	       (action == SECCOMP_RET_ALLOW || action == SECCOMP_RET_LOG || (action == SECCOMP_RET_ERRNO && may_fail));
}

/* Whether the call is harmless by every path that its arguments can take. Jumps only lead forward, so one pass will do. */
static int allows(struct filter *filter, ml_u32 number)
{
	for (ml_u32 i = 0; i < filter->n; i++)
		filter->at[i].is_reached = 0;
	reach(filter, 0, (struct reached){ 0, 1, 1 });
	for (ml_u32 i = 0; i < filter->n; i++) {
		const struct sock_filter *code = &filter->code[i];
		struct reached a = filter->at[i];

		if (!a.is_reached)
			continue;
		switch (BPF_CLASS(code->code)) {
		case BPF_RET:
			if (!lets_pass(code, number))
				return 0;
			break;
		case BPF_JMP: jump(filter, i, a); break;
		case BPF_LD: reach(filter, (ml_u64)i + 1, load(code, number)); break;
		case BPF_ALU: reach(filter, (ml_u64)i + 1, compute(code, a)); break;
		case BPF_MISC:
			a.is_known &= BPF_MISCOP(code->code) == BPF_TAX;
			/* fall through */
		default: reach(filter, (ml_u64)i + 1, a);
		}
	}
	return 1;
}

static void keep(const ml_u32 *allowed)
{
	if (ml_sandbox.own_pid && !ml_sandbox_forbids(__NR_getpid))
		*ml_sandbox.own_pid = (ml_u32)ML_SYSCALL0(getpid);
	for (ml_u32 i = 0; i < ML_SYSTEM_CALLS / 32; i++)
		__atomic_fetch_and(&ml_sandbox.allowed[i], allowed[i], __ATOMIC_RELAXED);
	__atomic_store_n(&ml_sandbox.is_on, 1, __ATOMIC_RELEASE);
}

void ml_sandbox_expect_strict(void)
{
	ml_u32 allowed[ML_SYSTEM_CALLS / 32] = { 0 };

	allowed[__NR_read / 32] |= 1u << __NR_read % 32;
	allowed[__NR_write / 32] |= 1u << __NR_write % 32;
	keep(allowed);
}

/* Returns 0 where the kernel will not read the program either. */
static int read_filter(struct filter *filter, const void *from)
{
	struct program program;
	long bytes;

	if (ml_read_memory(&program, (ml_u64)(unsigned long)from, sizeof(program)) != sizeof(program) || !program.n ||
	    program.n > BPF_MAXINSNS)
		return 0;
	filter->n = program.n;
	bytes = (long)(program.n * sizeof(*program.code));
	return ml_read_memory(filter->code, (ml_u64)(unsigned long)program.code, (unsigned long)bytes) == bytes;
}

/* Sets the bits of the system calls that the filter allows: none if memory is short. Returns 0 if the filter cannot be read. */
static int judge(const void *program, ml_u32 *allowed)
{
	long room = ML_MMAP(0, sizeof(struct filter), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct filter *filter = (struct filter *)room;
	int is_read;

	if (ml_is_error(room))
		return 1;
	is_read = read_filter(filter, program);
	for (ml_u32 n = 0; is_read && n < ML_SYSTEM_CALLS; n++)
		allowed[n / 32] |= (ml_u32)allows(filter, n) << n % 32;
	ML_SYSCALL2(munmap, room, sizeof(*filter));
	return is_read;
}

void ml_sandbox_expect_filter(const void *program)
{
	ml_u32 allowed[ML_SYSTEM_CALLS / 32] = { 0 };
	int can_read = !ml_sandbox_forbids(__NR_process_vm_readv) && !ml_sandbox_forbids(__NR_getpid);

	if (!can_read || judge(program, allowed))
		keep(allowed);
}
