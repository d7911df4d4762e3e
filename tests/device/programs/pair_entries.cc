// Calls of every kind by way of the shim's entries, whose two halves leave no register as they find it. Exit code: the line
// of the first result that is wrong.
#include "../../sessions/pairs/programs/odd_calls.cc"

extern "C" {
#include <stdint.h>

// struct ml_pair_frame of device/preload/entries/pair_entries.h, which is C.
struct Frame {
	uint64_t original, wants_return, n_stack_words;
};

extern const char ml_pair_entries[];
void ml_pair_enter(uint64_t call, Frame *frame, const void *registers);
void ml_pair_leave(Frame *frame, const void *registers);
}

static void *functions[64];
static bool wants_return;
static int n_left;

static void spoil()
{
#if defined(__x86_64__)
	__asm__ volatile("xor %%eax, %%eax\n mov %%rax, %%rcx\n mov %%rax, %%rdx\n mov %%rax, %%rsi\n mov %%rax, %%rdi\n"
			 "mov %%rax, %%r8\n mov %%rax, %%r9\n mov %%rax, %%r10\n mov %%rax, %%r11\n"
			 "pxor %%xmm0, %%xmm0\n pxor %%xmm1, %%xmm1\n pxor %%xmm2, %%xmm2\n pxor %%xmm3, %%xmm3\n"
			 "pxor %%xmm4, %%xmm4\n pxor %%xmm5, %%xmm5\n pxor %%xmm6, %%xmm6\n pxor %%xmm7, %%xmm7\n" ::
				 : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2",
				   "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
#else
	__asm__ volatile("mov x0, #0\n mov x1, #0\n mov x2, #0\n mov x3, #0\n mov x4, #0\n mov x5, #0\n mov x6, #0\n"
			 "mov x7, #0\n mov x8, #0\n mov x9, #0\n mov x10, #0\n mov x11, #0\n mov x12, #0\n mov x16, #0\n"
			 "mov x17, #0\n movi v0.2d, #0\n movi v1.2d, #0\n movi v2.2d, #0\n movi v3.2d, #0\n"
			 "movi v4.2d, #0\n movi v5.2d, #0\n movi v6.2d, #0\n movi v7.2d, #0\n" ::
				 : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12",
				   "x16", "x17", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7");
#endif
}

void ml_pair_enter(uint64_t call, Frame *frame, const void *)
{
	uint64_t moved = call & ((1ull << 56) - 1);

	frame->original = moved ? moved : reinterpret_cast<uint64_t>(functions[call >> 56]);
	frame->wants_return = wants_return;
	frame->n_stack_words = 16;
	spoil();
}

void ml_pair_leave(Frame *, const void *)
{
	n_left++;
	spoil();
}

template <typename Function> static Function *by_entry(int number, Function *function)
{
	functions[number] = reinterpret_cast<void *>(function);
	return reinterpret_cast<Function *>(reinterpret_cast<uintptr_t>(ml_pair_entries) + number * 16);
}

#define CHECK(what) \
	if (!(what)) \
		return __LINE__

/* What it keeps stands in registers that the entry has saved: the unwinder gives them back. */
__attribute__((noinline)) static int catches(void (*thrower)(long))
{
	long one = 11, two = 22, three = 33;

	__asm__ volatile("" : "+r"(one), "+r"(two), "+r"(three));
	try {
		thrower(1);
	} catch (const std::runtime_error &) {
		__asm__ volatile("" : "+r"(one), "+r"(two), "+r"(three));
		return one == 11 && two == 22 && three == 33;
	}
	return 0;
}

__attribute__((noinline)) static int check()
{
	CHECK(by_entry(0, odd_many)(1000, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8) ==
	      1000 + 2 + 6 + 15 + 28 + 55 + 78 + 119 + 285 + 152);
	CHECK(by_entry(1, odd_double)(1001, 0.5) == 1001.5);
	CHECK(by_entry(2, odd_long_double)(1002, 0.5L) == 501.0L);
	CHECK(by_entry(3, odd_large)(1003).values[4] == 1007);
	CHECK(by_entry(4, odd_mixed)(1004).number == 502 && by_entry(4, odd_mixed)(1004).word == 3012);
	Vector vector = by_entry(62, odd_vector)(1005);
	CHECK(vector.x == 1005 && vector.y == 1006 && vector.z == 1007 && vector.w == 1008);
	CHECK(by_entry(63, odd_variadic)(1006, 3, 1.0, 2.0, 4.0) == 1013);
	CHECK(catches(by_entry(7, odd_throw)));
	return 0;
}

int main()
{
	if (int line = check())
		return line;
	CHECK(n_left == 0);
	wants_return = true;
	if (int line = check())
		return line;
	CHECK(n_left == 8); // all but the one that throws
	return 0;
}
