// SPDX-License-Identifier: Apache-2.0
/* The agent's frame rules on this program's own stack: as the rules walk it, and as libgcc does. */
#include "../../../support/programs/libc.h"
#include <execinfo.h>
#include <ucontext.h>

#include "agent_stubs.h"
#include "agent/probes/frames.h"
#include "agent/process/process_maps.h"
#include "cfi/remote_memory.h"

static struct ml_remote_memory memory;

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static struct ml_frame_rule rules[ML_FRAME_RULES];
static struct {
	struct ml_evidence head;
	ml_u64 registers[21]; /* struct pt_regs of x86_64 */
	ml_u8 stack[32768];
} record;
static ml_u64 image = 7, image_now = 7;
static ml_u64 return_slots[256]; /* of each frame that was walked */
static void *truth[256];
static int n_truth;

/* As a tracer does it: by the rules alone. */
static int walk(ml_u64 addresses[256])
{
	ml_u64 sp = record.registers[19], fp = record.registers[4], at = record.registers[16];

	for (int n = 0; n < 256; n++) {
		ml_u64 hash = ml_frame_hash(at, image), cfa;
		const struct ml_frame_rule *rule = &rules[ml_frame_set(hash)];
		int way = 0;

		addresses[n] = at;
		while (way < ML_FRAME_SET_RULES && rule[way].hash != hash)
			way++;
		if (way == ML_FRAME_SET_RULES)
			return -(n + 1);
		rule += way;
		if (ml_frame_kind(rule) == ML_FRAME_END)
			return n + 1;
		cfa = (ml_frame_kind(rule) == ML_FRAME_SP ? sp : fp) + (ml_u64)ml_frame_cfa_offset(rule);
		if (ml_frame_kind(rule) == ML_FRAME_FP_DEREF)
			cfa = *(ml_u64 *)cfa;
		if (ml_frame_kind(rule) == ML_FRAME_NONE || cfa <= sp)
			return -(n + 1);
		return_slots[n] = cfa - 8 * rule->ra_words;
		at = *(ml_u64 *)return_slots[n];
		if (rule->fp_words)
			fp = *(ml_u64 *)(rule->fp_words == ML_FRAME_FP_AT_FP ? fp : cfa - 8 * rule->fp_words);
		sp = cfa;
	}
	return -256;
}

static ml_u64 tell_image(void *context, ml_u32 pid)
{
	(void)context, (void)pid;
	return image_now;
}

static int learn(struct ml_frames *frames, ml_u64 new_image)
{
	struct ml_frames_space space = { (ml_u32)getpid(), new_image, rules, tell_image, NULL };

	image = image_now = new_image;
	return ml_frames_learn(frames, &space, &record.head);
}

/* The record as it is where a uretprobe holds the return address of the sixth frame; then as other things spoil it. */
static void examine_variants(struct ml_frames *frames)
{
	ml_u8 *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ml_u64 *word = (ml_u64 *)(record.stack + (return_slots[5] - record.head.stack_address));
	ml_u64 original = *word;
	ml_u64 pc = record.registers[16];

	*word = (ml_u64)code + 8;
	printf("cut_by_trampoline %d\n", learn(frames, 11));
	record.head.n_fixups = 1;
	record.head.fixups[0] = (struct ml_fixup){ return_slots[5], original };
	printf("with_fixup %d\n", learn(frames, 12));
	record.registers[16] = (ml_u64)code + 16;
	printf("code_of_no_file %d\n", learn(frames, 13));
	record.registers[16] = 0x1000;
	printf("no_code %d\n", learn(frames, 14));
	record.registers[16] = pc;
	record.head.stack_bytes = 40;
	printf("short_slice %d\n", learn(frames, 15));
	record.head.stack_bytes = sizeof(record.stack) + 8;
	printf("impossible_slice %d\n", learn(frames, 16));
	record.head.stack_bytes = 0;
	printf("no_slice %d\n", learn(frames, 17));
	record.head.stack_bytes = 40;
	record.head.registers_known = 1 << 16 | 1 << 19;
	printf("no_fp %d\n", learn(frames, 18));
}

/* Room for what is learned is given back when the images that filled it are gone. */
static void examine_recycling(struct ml_frames *frames)
{
	const ml_u64 alive[] = { 21 };

	printf("kept %d\n", learn(frames, 21));
	for (ml_u32 i = 0; i < ML_FRAME_RULES; i++)
		if (!rules[i].hash)
			rules[i].hash = 1; /* of no image */
	printf("no_room %d\n", learn(frames, 22));
	printf("is_full %d\n", ml_frames_is_full(frames));
	ml_frames_recycle(frames, rules, alive, 1);
	printf("is_full_after %d\n", ml_frames_is_full(frames));
	printf("kept_after %d\n", learn(frames, 21));
	printf("room_after %d\n", learn(frames, 22));
}

/* Copies the stack while the callers are still on it. */
static void examine(void)
{
	struct ml_frames *frames = ml_frames_create();
	struct ml_frames_space space = { (ml_u32)getpid(), image, rules, tell_image, NULL };
	ml_u64 addresses[256] = { 0 };
	int n;

	image_now = 8;
	printf("other_image %d\n", ml_frames_learn(frames, &space, &record.head));
	image_now = 7;
	printf("added %d\n", ml_frames_learn(frames, &space, &record.head));
	printf("added_again %d\n", ml_frames_learn(frames, &space, &record.head));
	n = walk(addresses);
	printf("complete %d\n", n > 0);
	for (int i = 1; i < abs(n); i++)
		printf("walked %lx\n", (unsigned long)addresses[i]);
	for (int i = 2; i < n_truth; i++)
		printf("truth %lx\n", (unsigned long)truth[i]);
	examine_recycling(frames);
	examine_variants(frames);
	ml_frames_forget(frames, (ml_u32)getpid());
	ml_frames_destroy(frames);
}

static ml_u32 bytes_to_end_of_stack(ml_u64 sp)
{
	char *text = ml_process_maps_read((ml_u32)getpid(), NULL);
	struct ml_maps_line line;
	ml_u64 left = ml_process_maps_find(text, sp, &line) ? line.end - sp : 0;

	free(text);
	return left < sizeof(record.stack) ? (ml_u32)left : sizeof(record.stack);
}

/* getcontext() leaves what a tracer sees when an allocator has returned. */
static __attribute__((noinline)) void capture(void)
{
	struct ml_evidence *head = &record.head;
	ucontext_t context;

	n_truth = backtrace(truth, 256);
	getcontext(&context);
	record.registers[16] = (ml_u64)context.uc_mcontext.gregs[REG_RIP];
	record.registers[19] = (ml_u64)context.uc_mcontext.gregs[REG_RSP];
	record.registers[4] = (ml_u64)context.uc_mcontext.gregs[REG_RBP];
	*head = (struct ml_evidence){
		.record_bytes = sizeof(record), .flags = ML_EVIDENCE_AT_RETURN, .pid = (ml_u32)getpid(), .n_registers = 21,
		.stack_bytes = bytes_to_end_of_stack(record.registers[19]), .stack_address = record.registers[19],
		.registers_known = 1 << 4 | 1 << 16 | 1 << 19,
	};
	/* not memcpy(): what lies between variables is none of a sanitizer's business */
	if (ml_remote_memory_read(&memory, head->pid, head->stack_address, record.stack, head->stack_bytes))
		fail("our own stack");
	examine();
}

static int aligned_frame(const void *left, const void *right)
{
	volatile ml_u8 room[(size_t)(*(const int *)left & 15) + 1]; /* a frame that only rbp finds */

	if (!n_truth) {
		room[0] = *(const ml_u8 *)right;
		capture();
	}
	return *(const int *)left - *(const int *)right + (room[0] & 0);
}

static int recurse(int depth);

/* More aligned than the ABI's stack is: GCC finds the CFA by a word below the frame pointer. */
static __attribute__((noinline)) int realigned(int depth)
{
	volatile _Alignas(64) ml_u8 room[64] = { (ml_u8)depth };

	return recurse(depth) + (room[0] != (ml_u8)depth);
}

static __attribute__((noinline)) int recurse(int depth)
{
	volatile int numbers[] = { 3, 1, 2, depth };
	int result;

	if (depth) {
		result = (depth % 3 ? recurse(depth - 1) : realigned(depth - 1)) + 1;
	} else {
		qsort((void *)numbers, 4, sizeof(int), aligned_frame);
		result = 0;
	}
	return result + numbers[3];
}

int main(void)
{
	recurse(12);
	return 0;
}
