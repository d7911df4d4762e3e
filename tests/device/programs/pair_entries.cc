// Calls of every kind by way of the shim's entries, whose two halves leave no register as they find it: odd_main.cc, whose
// main() is odd_main() here and checks each result, with its calls led to the entries (ld --wrap).
#include <stdint.h>

extern "C" {
// struct ml_pair_frame of device/preload/entries/pair_entries.h, which is C.
struct Frame {
	uint64_t original, wants_return, n_stack_words;
};

void ml_pair_enter(uint64_t call, Frame *frame, const void *registers);
void ml_pair_leave(Frame *frame, const void *registers);
}

#if defined(__x86_64__)
#define JUMP "jmp"
#define SPOIL \
	"xor %%eax, %%eax\n mov %%rax, %%rcx\n mov %%rax, %%rdx\n mov %%rax, %%rsi\n mov %%rax, %%rdi\n" \
	"mov %%rax, %%r8\n mov %%rax, %%r9\n mov %%rax, %%r10\n mov %%rax, %%r11\n" \
	".irp n, 0,1,2,3,4,5,6,7\n pxor %%xmm\\n, %%xmm\\n\n .endr\n" ::: \
	"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", \
	"xmm6", "xmm7"
#else
#define JUMP "b"
#define SPOIL \
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,16,17\n mov x\\n, #0\n .endr\n" \
	".irp n, 0,1,2,3,4,5,6,7\n movi v\\n\\().2d, #0\n .endr\n" ::: \
	"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x16", "x17", "v0", "v1", \
	"v2", "v3", "v4", "v5", "v6", "v7"
#endif

#define EACH(x) \
	x(many, 0) x(double, 1) x(long_double, 2) x(large, 3) x(mixed, 4) x(vector, 62) x(variadic, 63) x(throw, 7) \
	x(outer, 8) x(done, 9)
#define DECLARE(name, number) extern "C" void __real_odd_##name();
#define LEAD(name, number) \
	__asm__(".text\n.globl __wrap_odd_" #name "\n__wrap_odd_" #name ":\n" JUMP " ml_pair_entries + " #number " * 16\n");
#define SET(name, number) functions[number] = reinterpret_cast<uint64_t>(__real_odd_##name);

EACH(DECLARE)
EACH(LEAD)

static uint64_t functions[64];
static bool wants_return;
static int n_left;
int odd_main();

void ml_pair_enter(uint64_t call, Frame *frame, const void *)
{
	uint64_t moved = call & ((1ull << 56) - 1);

	*frame = { moved ? moved : functions[call >> 56], wants_return, 16 };
	__asm__ volatile(SPOIL);
}

void ml_pair_leave(Frame *, const void *)
{
	n_left++;
	__asm__ volatile(SPOIL);
}

int main()
{
	EACH(SET)
	if (int line = odd_main())
		return line;
	wants_return = true;
	if (n_left || odd_main())
		return 1;
	return n_left != 10 + 2 * 100; // all but the one that throws
}
