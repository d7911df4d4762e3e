// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/patched_code.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/process_maps.h"

#define PIECE_BYTES 256
#define BEFORE_BYTES_MAX 128 /* before the probe; a hook that begins there may reach it */
#if defined(__aarch64__)
#define INSTRUCTION_BYTES_MAX 4
#else
#define INSTRUCTION_BYTES_MAX 15
#endif

struct code {
	int pid;
	int memory_fd;
	const struct ml_probed_file *file;
};

static bool is_breakpoint(const ml_u8 *there)
{
#if defined(__aarch64__)
	ml_u32 word;

	memcpy(&word, there, sizeof(word));
	return (word & 0xffe0001f) == 0xd4200000;
#else
	return *there == 0xcc;
#endif
}

bool ml_code_agrees(const ml_u8 *there, const ml_u8 *in_file, size_t n)
{
	for (size_t i = 0; i + ML_CODE_STEP <= n; i += ML_CODE_STEP)
		if (memcmp(there + i, in_file + i, ML_CODE_STEP) && !is_breakpoint(there + i))
			return false;
	return true;
}

static bool is_of_file(const struct ml_maps_line *line, const struct code *code)
{
	return line->inode == code->file->version.inode && makedev(line->major, line->minor) == code->file->version.device;
}

/* Length of a hook, by its first bytes. x86-64: jmp rel32, jmp rel8, else an absolute jump; arm64: b, else a literal and br. */
static size_t hook_bytes(const ml_u8 *code)
{
#if defined(__aarch64__)
	ml_u32 word;

	memcpy(&word, code, sizeof(word));
	return (word & 0xfc000000) == 0x14000000 ? 4 : 16;
#else
	return *code == 0xe9 ? 5 : *code == 0xeb ? 2 : 16;
#endif
}

/*
 * Whether a hook begins at the probe itself. It may begin with bytes of the function (48 b8, movabs, over any instruction with REX.W).
 * A later difference is another hook only if it is a jump.
 */
static bool is_hooked_from(const ml_u8 *there, const ml_u8 *in_file, size_t n)
{
	for (size_t at = 0; at + ML_CODE_STEP <= n; at += ML_CODE_STEP)
		if (!ml_code_agrees(there + at, in_file + at, ML_CODE_STEP))
			return there[at] != 0xe9 && there[at] != 0xeb &&
			       !(there[at] == 0xff && at + 1 < n && there[at + 1] == 0x25);
	return false;
}

/* Offset of the hook that reaches into the last bytes, those of the probe; n: none. */
static size_t find_hook(const ml_u8 *there, const ml_u8 *in_file, size_t n)
{
	for (size_t at = 0; at + ML_CODE_STEP <= n;) {
		size_t bytes;

		if (ml_code_agrees(there + at, in_file + at, ML_CODE_STEP)) {
			at += ML_CODE_STEP;
			continue;
		}
		bytes = hook_bytes(there + at);
		if (at + bytes > n - ML_CODE_STEP)
			return at;
		at += bytes;
	}
	return n;
}

static void check_address(const struct code *code, const struct ml_maps_line *line, struct ml_probed_address *probe)
{
	ml_u64 end = probe->offset + ML_CODE_STEP, last = line->offset + (line->end - line->start);
	ml_u64 begin = probe->offset - probe->function > BEFORE_BYTES_MAX ? probe->offset - BEFORE_BYTES_MAX : probe->function;
	ml_u64 address = line->start + (begin - line->offset);
	ml_u8 there[PIECE_BYTES], in_file[PIECE_BYTES];
	size_t n = (size_t)(end - begin), hook, behind = INSTRUCTION_BYTES_MAX - ML_CODE_STEP;

	if (probe->address || begin > probe->offset || begin < line->offset || end > last)
		return;
	if (behind > last - end)
		behind = (size_t)(last - end);
	if (pread(code->memory_fd, there, n + behind, (off_t)address) != (ssize_t)(n + behind) ||
	    pread(code->file->fd, in_file, n + behind, (off_t)begin) != (ssize_t)(n + behind))
		return;
	hook = find_hook(there, in_file, n);
	if (hook == n && is_hooked_from(there + n, in_file + n, behind))
		hook = n - ML_CODE_STEP;
	if (hook == n)
		return;
	probe->address = address + hook;
	probe->pid = code->pid;
}

static void check_maps(const struct code *code, const char *text, struct ml_probed_address *probes, size_t n)
{
	struct ml_maps_line line;

	for (const char *at = text; (at = ml_process_maps_code(at, &line));)
		for (size_t i = 0; is_of_file(&line, code) && i < n; i++)
			check_address(code, &line, &probes[i]);
}

static void check_process(struct code *code, struct ml_probed_address *probes, size_t n)
{
	char *text;

	code->memory_fd = ml_proc_open(code->pid, "mem", O_RDONLY);
	text = code->memory_fd >= 0 ? ml_process_maps_read((ml_u32)code->pid, NULL) : NULL;
	if (text)
		check_maps(code, text, probes, n);
	free(text);
	if (code->memory_fd >= 0)
		close(code->memory_fd);
}

static bool is_any_patched(const struct ml_probed_address *probes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (probes[i].address)
			return true;
	return false;
}

bool ml_patched_code_find(int pid, const struct ml_probed_file *file, struct ml_probed_address *probes, size_t n)
{
	struct code code = { .pid = pid, .file = file };

	check_process(&code, probes, n);
	return is_any_patched(probes, n);
}

void ml_patched_code_find_all(const struct ml_probed_file *file, struct ml_probed_address *probes, size_t n,
			      void (*found)(void *context, int pid), void *context)
{
	DIR *processes = opendir("/proc");
	struct code code = { .file = file };
	struct dirent *entry;

	while (processes && (entry = readdir(processes))) {
		code.pid = atoi(entry->d_name);
		if (code.pid <= 0 || code.pid == getpid())
			continue;
		check_process(&code, probes, n);
		if (is_any_patched(probes, n))
			found(context, code.pid);
		for (size_t i = 0; i < n; i++)
			probes[i].address = 0;
	}
	if (processes)
		closedir(processes);
}
