// SPDX-License-Identifier: Apache-2.0
/*
 * Unwinds x86_64 samples by elfutils' libdwfl, one Dwfl kept for each address space, and writes what it looked up.
 *
 *   dwfl_samples DESCRIPTION STACKS CHAINS PASSES
 *
 * DESCRIPTION (tests/support/oracles/dwfl.py writes it), words of 8 bytes, little-endian:
 *   number of spaces; per space its number of modules, per module: load address, bytes of the path, path (padded)
 *   number of samples; per sample: space, 17 registers by DWARF number, stack address, bytes, offset in STACKS
 * CHAINS: per sample a word n, then n addresses; those of callers are one less than the return address.
 * To stdout: CPU nanoseconds of each pass over all samples, the first one with opening the ELF files. The samples
 * are in memory before.
 */
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REGISTERS 17
#define FRAMES_MAX 1024
#define TID 1

struct sample {
	uint64_t space;
	uint64_t registers[REGISTERS];
	uint64_t stack_address;
	uint64_t stack_bytes;
	uint64_t stack_offset;
};

struct chain {
	uint64_t length;
	uint64_t address[FRAMES_MAX];
};

struct run {
	const uint8_t *stacks;
	const struct sample *sample;
	struct chain chain;
};

static void fail(const char *what)
{
	fprintf(stderr, "dwfl_samples: %s: %s\n", what, dwfl_errmsg(-1));
	exit(1);
}

static const void *map_file(const char *path)
{
	struct stat status;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);

	if (descriptor < 0 || fstat(descriptor, &status) || !status.st_size)
		fail(path);
	void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, descriptor, 0);

	close(descriptor);
	if (data == MAP_FAILED)
		fail(path);
	return data;
}

static int no_debuginfo(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, const char *file,
			const char *link, GElf_Word crc, char **found)
{
	(void)module, (void)user, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)found;
	return -1;
}

static pid_t next_thread(Dwfl *dwfl, void *argument, void **thread)
{
	(void)dwfl;
	bool is_first = !*thread;

	*thread = argument;
	return is_first ? TID : 0;
}

static bool get_thread(Dwfl *dwfl, pid_t tid, void *argument, void **thread)
{
	(void)dwfl, (void)tid;
	*thread = argument;
	return true;
}

static bool read_memory(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *word, void *argument)
{
	const struct run *run = argument;
	uint64_t at = address - run->sample->stack_address;

	(void)dwfl;
	if (run->sample->stack_bytes < sizeof(*word) || at > run->sample->stack_bytes - sizeof(*word))
		return false;
	memcpy(word, run->stacks + run->sample->stack_offset + at, sizeof(*word));
	return true;
}

static bool set_registers(Dwfl_Thread *thread, void *argument)
{
	const struct run *run = argument;

	return dwfl_thread_state_registers(thread, 0, REGISTERS, run->sample->registers);
}

static int note_frame(Dwfl_Frame *frame, void *argument)
{
	struct run *run = argument;
	Dwarf_Addr pc;
	bool is_activation;

	if (!dwfl_frame_pc(frame, &pc, &is_activation) || run->chain.length == FRAMES_MAX)
		return DWARF_CB_ABORT;
	run->chain.address[run->chain.length++] = pc - !is_activation;
	return DWARF_CB_OK;
}

static const Dwfl_Callbacks file_callbacks = {
	.find_elf = dwfl_build_id_find_elf,
	.find_debuginfo = no_debuginfo,
	.section_address = dwfl_offline_section_address,
};
static const Dwfl_Thread_Callbacks thread_callbacks = {
	.next_thread = next_thread,
	.get_thread = get_thread,
	.memory_read = read_memory,
	.set_initial_registers = set_registers,
};

/* One Dwfl from its part of the description; goes past that. */
static Dwfl *open_space(const uint64_t **words, struct run *run)
{
	Dwfl *dwfl = dwfl_begin(&file_callbacks);
	uint64_t modules = *(*words)++;

	if (!dwfl)
		fail("dwfl_begin");
	dwfl_report_begin(dwfl);
	for (uint64_t i = 0; i < modules; i++) {
		uint64_t address = *(*words)++, bytes = *(*words)++;
		const char *path = (const char *)*words;

		*words += (bytes + 7) / 8;
		if (!dwfl_report_elf(dwfl, path, path, -1, address, false))
			fail(path);
	}
	dwfl_report_end(dwfl, NULL, NULL);
	if (modules && !dwfl_attach_state(dwfl, NULL, TID, &thread_callbacks, run))
		fail("dwfl_attach_state");
	return dwfl;
}

static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void unwind_all(struct run *run, Dwfl **spaces, const struct sample *samples, uint64_t count, FILE *out)
{
	for (uint64_t i = 0; i < count; i++) {
		run->sample = &samples[i];
		run->chain.length = 0;
		dwfl_getthread_frames(spaces[samples[i].space], TID, note_frame, run);
		if (out)
			fwrite(&run->chain, sizeof(uint64_t), 1 + run->chain.length, out);
	}
}

int main(int argc, char **argv)
{
	static struct run run;

	if (argc != 5)
		return 2;
	const uint64_t *words = map_file(argv[1]);
	uint64_t count = *words++;
	Dwfl **spaces = calloc(count + 1, sizeof(*spaces));

	if (!spaces)
		return 1;
	run.stacks = map_file(argv[2]);
	uint64_t begin = cpu_ns();

	for (uint64_t i = 0; i < count; i++)
		spaces[i] = open_space(&words, &run);
	uint64_t samples = *words++;
	FILE *out = fopen(argv[3], "wb");

	if (!out)
		fail(argv[3]);
	for (int pass = 0; pass < atoi(argv[4]); pass++) {
		unwind_all(&run, spaces, (const struct sample *)words, samples, pass ? NULL : out);
		uint64_t end = cpu_ns();

		printf("%" PRIu64 "\n", end - begin);
		begin = end;
	}
	return fclose(out) ? 1 : 0;
}
