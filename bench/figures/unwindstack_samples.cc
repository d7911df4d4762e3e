// SPDX-License-Identifier: Apache-2.0
/*
 * Built against the Linux fork of AOSP's libunwindstack (cinit/libunwindstack, commit 7a83b2f), in a folder LUS:
 *
 *   cmake -S LUS -B LUS/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
 *   ninja -C LUS/build unwindstack dexfile_stub
 *   cd LUS/build && clang++ -std=c++20 -O2 -I../libunwindstack/include -I../libbase/include -I../liblog \
 *       -o unwindstack_samples THIS_FILE ../log_stub/android_log_impl.cc libunwindstack.a libdexfile_stub.a \
 *       libunwindstack.a libziparchive.a liblzma.a libprocinfo.a libbase.a -lz -lpthread
 *   MEMLEAK_UNWINDSTACK=LUS/build/unwindstack_samples python -m bench unwind
 *
 * Unwinds x86_64 samples by AOSP's libunwindstack, its ELF files kept; input, output and use as tests/unwind/oracle/dwfl_samples.c:
 *
 *   unwindstack_samples DESCRIPTION STACKS CHAINS PASSES
 *
 * Names are off. Mappings are those that the loader makes of each module's PT_LOADs.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include <unwindstack/Elf.h>
#include <unwindstack/Maps.h>
#include <unwindstack/Memory.h>
#include <unwindstack/RegsX86_64.h>
#include <unwindstack/MachineX86_64.h>
#include <unwindstack/Unwinder.h>

static constexpr size_t REGISTERS = 17, FRAMES_MAX = 1024;
static constexpr uint64_t PAGE = 4096;

struct Sample {
	uint64_t space, registers[REGISTERS], stack_address, stack_bytes, stack_offset;
};

/* The slice of one sample, and nothing else, as the process's memory. */
class Slice : public unwindstack::Memory {
public:
	const uint8_t *data = nullptr;
	uint64_t begin = 0, bytes = 0;

	size_t Read(uint64_t address, void *to, size_t size) override
	{
		uint64_t at = address - begin;

		if (at >= bytes)
			return 0;
		size = size < bytes - at ? size : bytes - at;
		memcpy(to, data + at, size);
		return size;
	}
};

static const uint8_t *map_file(const char *path)
{
	struct stat status;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);

	if (descriptor < 0 || fstat(descriptor, &status) || !status.st_size) {
		perror(path);
		exit(1);
	}
	void *data = mmap(nullptr, (size_t)status.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, descriptor, 0);

	close(descriptor);
	if (data == MAP_FAILED)
		exit(1);
	return static_cast<const uint8_t *>(data);
}

static void add_module(unwindstack::Maps *maps, uint64_t address, const char *path)
{
	FILE *file = fopen(path, "re");
	Elf64_Ehdr header;
	Elf64_Phdr segment;
	uint64_t first = UINT64_MAX;

	if (!file || fread(&header, sizeof(header), 1, file) != 1)
		return;
	for (int i = 0; i < header.e_phnum; i++) {
		fseek(file, (long)(header.e_phoff + (uint64_t)i * sizeof(segment)), SEEK_SET);
		if (fread(&segment, sizeof(segment), 1, file) != 1 || segment.p_type != PT_LOAD)
			continue;
		uint64_t begin = segment.p_vaddr & -PAGE, end = (segment.p_vaddr + segment.p_filesz + PAGE - 1) & -PAGE;

		first = first == UINT64_MAX ? begin : first;
		uint64_t flags = (segment.p_flags & PF_R ? PROT_READ : 0) | (segment.p_flags & PF_X ? PROT_EXEC : 0);

		maps->Add(address + begin - first, address + end - first, segment.p_offset & -PAGE, flags, path);
	}
	fclose(file);
}

using Spaces = std::vector<std::unique_ptr<unwindstack::Maps>>;

/* The address spaces of the description; returns what stands behind them. */
static const uint64_t *read_spaces(const uint64_t *words, Spaces *spaces)
{
	for (uint64_t left = *words++; left; left--) {
		auto space = std::make_unique<unwindstack::Maps>();

		for (uint64_t modules = *words++; modules; modules--) {
			uint64_t address = *words++, bytes = *words++;

			add_module(space.get(), address, reinterpret_cast<const char *>(words));
			words += (bytes + 7) / 8;
		}
		space->Sort();
		spaces->push_back(std::move(space));
	}
	return words;
}

static void unwind_all(const uint64_t *words, const uint8_t *stacks, const Spaces &spaces, FILE *chains)
{
	auto slice = std::make_shared<Slice>();
	std::shared_ptr<unwindstack::Memory> memory = slice;
	uint64_t n = *words++;

	for (const Sample *sample = reinterpret_cast<const Sample *>(words); n; n--, sample++) {
		unwindstack::RegsX86_64 regs; /* numbered as DWARF does */

		for (size_t k = 0; k < REGISTERS; k++)
			regs[k] = sample->registers[k];
		slice->data = stacks + sample->stack_offset;
		slice->begin = sample->stack_address;
		slice->bytes = sample->stack_bytes;
		unwindstack::Unwinder unwinder(FRAMES_MAX, spaces[sample->space].get(), &regs, memory);
		unwinder.SetResolveNames(false);
		unwinder.Unwind();
		if (!chains)
			continue;
		uint64_t length = unwinder.NumFrames();

		fwrite(&length, sizeof(length), 1, chains);
		for (const auto &frame : unwinder.frames())
			fwrite(&frame.pc, sizeof(frame.pc), 1, chains);
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	const uint64_t *description = reinterpret_cast<const uint64_t *>(map_file(argv[1]));
	const uint8_t *stacks = map_file(argv[2]);
	FILE *chains = fopen(argv[3], "we");
	struct timespec before, after;
	const uint64_t *samples = nullptr;
	Spaces spaces;

	unwindstack::Elf::SetCachingEnabled(true); /* a file is opened once, whatever the number of spaces */
	for (int pass = 0; pass < atoi(argv[4]); pass++) {
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
		if (!pass)
			samples = read_spaces(description, &spaces);
		unwind_all(samples, stacks, spaces, pass ? nullptr : chains);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
		printf("%lld\n", (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec);
	}
	fclose(chains);
	return 0;
}
