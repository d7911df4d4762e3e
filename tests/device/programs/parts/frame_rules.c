// SPDX-License-Identifier: Apache-2.0
/*
 * The agent's CFI resolver on ELF files that this program maps as a loader does.
 *
 *   frame_rules file ARCH PATH            for each return address (vaddr, u64) on standard input a struct answer
 *   frame_rules mutate ARCH PATH N SEED   the same addresses N times, each time with other bytes of its CFI
 */
#define _GNU_SOURCE
#include "agent_stubs.h"
#include "elf_image.h"
#include "agent/process/code_map.h"
#include "agent/process/process_maps.h"

struct answer {
	ml_s32 found; /* enum ml_cfi_found of the FDE */
	ml_s32 kind, offset;
	ml_u16 fp_words, ra_words;
};

static struct ml_remote_memory memory;

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
	struct image image = load(path);
	size_t n;
	ml_u64 *vaddrs = read_vaddrs(&n);

	for (size_t i = 0; i < n; i++) {
		struct answer answer = ask(arch, &image, vaddrs[i]);

		fwrite(&answer, sizeof(answer), 1, stdout);
	}
	free(vaddrs);
}

/* Each round changes bytes of the header, of its table or of the entries that the addresses use, and puts them back. */
static void run_mutations(const struct ml_cfi_arch *arch, const char *path, int n_rounds, unsigned int seed)
{
	struct image image = load(path);
	size_t n;
	ml_u64 *vaddrs = read_vaddrs(&n);
	ml_u8 *cfi, *saved, header[1024];
	int kinds[8] = { 0 };

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

int main(int argc, char **argv)
{
	const struct ml_cfi_arch *arch = argc > 2 && !strcmp(argv[2], "arm64") ? &ml_cfi_arm64 : &ml_cfi_x86_64;

	if (argc == 4 && !strcmp(argv[1], "file"))
		run_file(arch, argv[3]);
	else if (argc == 6 && !strcmp(argv[1], "mutate"))
		run_mutations(arch, argv[3], atoi(argv[4]), (unsigned int)atoi(argv[5]));
	else
		return 2;
	return 0;
}
