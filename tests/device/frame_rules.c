// SPDX-License-Identifier: Apache-2.0
/*
 * The agent's CFI resolver on ELF files that this program maps as a loader does, and on its own stack.
 *
 *   frame_rules file ARCH PATH            for each return address (vaddr, u64) on standard input a struct answer
 *   frame_rules mutate ARCH PATH N SEED   the same addresses N times, each time with other bytes of its CFI
 *   frame_rules self                      a stack of its own, as the rules walk it and as libgcc does
 */
#define _GNU_SOURCE
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "blocks.h"
#include "code_map.h"
#include "frames.h"
#include "process_maps.h"

/* process_maps.c can send maps too; nothing here asks for it. */
int ml_blocks_writev(enum ml_block_kind kind, const struct iovec *parts, int n_parts)
{
	return (void)kind, (void)parts, n_parts;
}

ml_u64 ml_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (ml_u64)now.tv_sec * 1000000000ull + (ml_u64)now.tv_nsec;
}

struct answer {
	ml_s32 found; /* enum ml_cfi_found of the FDE */
	ml_s32 kind, offset;
	ml_u16 fp_words, ra_words;
};

static struct ml_remote_memory memory;

static ml_u64 page_down(ml_u64 address)
{
	return address & ~4095ull;
}

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

/* ---- a file as a loader maps it ------------------------------------------------------------------ */

struct image {
	ml_u8 *base;  /* of the first page of the file */
	ml_u64 first; /* its vaddr */
	ml_u64 cfi, cfi_bytes; /* of .eh_frame_hdr and what follows it in its segment */
};

static const Elf64_Phdr *segments_of(const ml_u8 *file)
{
	return (const Elf64_Phdr *)(file + ((const Elf64_Ehdr *)file)->e_phoff);
}

static void load(struct image *image, const char *path)
{
	int fd = open(path, O_RDONLY);
	struct stat status;
	ml_u8 *file;
	ml_u64 low = ~0ull, high = 0;
	int n;

	if (fd < 0 || fstat(fd, &status))
		fail(path);
	file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED)
		fail(path);
	n = ((const Elf64_Ehdr *)file)->e_phnum;
	for (const Elf64_Phdr *s = segments_of(file); s < segments_of(file) + n; s++) {
		if (s->p_type != PT_LOAD)
			continue;
		low = page_down(s->p_vaddr) < low ? page_down(s->p_vaddr) : low;
		high = s->p_vaddr + s->p_memsz > high ? s->p_vaddr + s->p_memsz : high;
	}
	image->base = mmap(NULL, page_down(high - low + 4095), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (image->base == MAP_FAILED)
		fail("mmap");
	image->first = low;
	for (const Elf64_Phdr *s = segments_of(file); s < segments_of(file) + n; s++) {
		if (s->p_type == PT_LOAD)
			memcpy(image->base + (s->p_vaddr - low), file + s->p_offset, s->p_filesz);
		if (s->p_type == PT_GNU_EH_FRAME)
			image->cfi = s->p_vaddr - low;
	}
	for (const Elf64_Phdr *s = segments_of(file); s < segments_of(file) + n; s++)
		if (s->p_type == PT_LOAD && image->cfi - (s->p_vaddr - low) < s->p_filesz)
			image->cfi_bytes = s->p_vaddr - low + s->p_filesz - image->cfi;
	munmap(file, (size_t)status.st_size);
	close(fd);
}

static struct answer ask(const struct ml_cfi_arch *arch, const struct image *image, ml_u64 return_vaddr)
{
	ml_u64 elf = (ml_u64)image->base;
	ml_u64 pc = elf + (return_vaddr - image->first) - 1;
	ml_u32 pid = (ml_u32)getpid();
	struct ml_eh_frame eh_frame;
	struct ml_frame_rule rule = { .cfa = ML_FRAME_NONE };
	struct ml_fde fde;
	enum ml_cfi_found found = ml_eh_frame_open(&memory, pid, arch, elf, pc, &eh_frame);

	if (found == ML_CFI_FOUND)
		found = ml_eh_frame_find(&memory, pid, &eh_frame, pc, &fde);
	if (found == ML_CFI_FOUND)
		found = ml_cfi_rule(&memory, pid, arch, &fde, pc, &rule);
	return (struct answer){ found, (ml_s32)ml_frame_kind(&rule), ml_frame_cfa_offset(&rule), rule.fp_words, rule.ra_words };
}

static ml_u64 *read_vaddrs(size_t *n)
{
	size_t room = 1u << 24;
	ml_u64 *vaddrs = malloc(room * sizeof(*vaddrs));

	if (!vaddrs)
		fail("malloc");
	*n = fread(vaddrs, sizeof(*vaddrs), room, stdin);
	return vaddrs;
}

static void run_file(const struct ml_cfi_arch *arch, const char *path)
{
	struct image image = { 0 };
	size_t n;
	ml_u64 *vaddrs = read_vaddrs(&n);

	load(&image, path);
	for (size_t i = 0; i < n; i++) {
		struct answer answer = ask(arch, &image, vaddrs[i]);

		fwrite(&answer, sizeof(answer), 1, stdout);
	}
	free(vaddrs);
}

/* Each round changes bytes of the header, of its table or of the entries that the addresses use, and puts them back. */
static void run_mutations(const struct ml_cfi_arch *arch, const char *path, int n_rounds, unsigned int seed)
{
	struct image image = { 0 };
	size_t n;
	ml_u64 *vaddrs = read_vaddrs(&n);
	ml_u8 *cfi, *saved, header[1024];
	int kinds[8] = { 0 };

	load(&image, path);
	cfi = image.base + image.cfi;
	saved = malloc(image.cfi_bytes);
	if (!saved || !image.cfi_bytes)
		fail("no CFI");
	memcpy(saved, cfi, image.cfi_bytes);
	memcpy(header, image.base, sizeof(header));
	srand(seed);
	for (int round = 0; round < n_rounds; round++) {
		int n_bytes = 1 + rand() % 64;
		ml_u64 span = round % 4 ? image.cfi_bytes : 64;
		ml_u8 *at = round % 8 == 1 ? image.base : cfi; /* the ELF header, too */

		if (at == image.base)
			span = sizeof(header);

		for (int i = 0; i < n_bytes; i++)
			at[((ml_u64)rand() << 31 | (ml_u64)rand()) % span] = (ml_u8)(rand() % 8 ? rand() : 0xff);
		ml_remote_memory_forget(&memory, (ml_u32)getpid());
		for (size_t i = 0; i < n; i++)
			kinds[ask(arch, &image, vaddrs[i]).kind]++;
		memcpy(cfi, saved, image.cfi_bytes);
		memcpy(image.base, header, sizeof(header));
	}
	for (int i = 0; i < 8; i++)
		printf("%d\n", kinds[i]);
	free(saved);
	free(vaddrs);
}

/* ---- our own stack ------------------------------------------------------------------------------- */

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
		ml_u64 place = ml_frame_place(at, image), cfa;
		const struct ml_frame_rule *rule = &rules[ml_frame_set(place)];
		int way = 0;

		addresses[n] = at;
		while (way < ML_FRAME_SET_RULES && rule[way].place != place)
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

/* What the stack looks like while the callers are still there. */
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
	examine_variants(frames);
	ml_frames_forget(frames, (ml_u32)getpid());
	ml_frames_destroy(frames);
}

#if defined(__x86_64__)
#include <ucontext.h>

static ml_u32 bytes_to_end_of_stack(ml_u64 sp)
{
	size_t bytes;
	char *text = ml_process_maps_read((ml_u32)getpid(), &bytes);
	ml_u64 left = text ? ml_process_maps_end(text, sp) - sp : 0;

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

static void run_self(void)
{
	recurse(12);
}
#else
static void run_self(void)
{
	puts("not on this architecture");
}
#endif

int main(int argc, char **argv)
{
	const struct ml_cfi_arch *arch = argc > 2 && !strcmp(argv[2], "arm64") ? &ml_cfi_arm64 : &ml_cfi_x86_64;

	if (argc == 4 && !strcmp(argv[1], "file"))
		run_file(arch, argv[3]);
	else if (argc == 6 && !strcmp(argv[1], "mutate"))
		run_mutations(arch, argv[3], atoi(argv[4]), (unsigned int)atoi(argv[5]));
	else if (argc == 2 && !strcmp(argv[1], "self"))
		run_self();
	else
		return 2;
	return 0;
}
