// SPDX-License-Identifier: Apache-2.0
/*
 * Sources: proc(5), /proc/PID/maps; System V gABI, "ELF Identification".
 */
#include "agent/scan/memory_scan.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/process/proc_file.h"
#include "agent/process/process_maps.h"
#include "agent/ptrace/threads.h"
#include "agent/scan/scan_pieces.h"
#include "agent/scan/scanned_words.h"
#include "agent/ptrace/state.h"

#define PATIENCE_MS 2000u
#define RED_ZONE_BYTES 128u /* psABI x86-64 §3.2.2: below the stack pointer, and still in use */
#define ROWS_AT_ONCE 4096u
/* The segment of the shim and its file's part (its .bss has no name: shim_memory.h), and memory of Android's runtime, where no blocks are. */
static const char *const own_names[] = { "/memfd:memleak", "libmemleak.so" };
#define RUNTIME "[anon:dalvik-"

struct scan {
	int pid;
	struct ml_scan_pieces pieces;
	char *maps;
	size_t maps_bytes;
	struct ml_exit_stop *threads;
	size_t n_threads;
	struct ml_shim_memory shim;
	struct ml_scanned_words words;
	struct ml_scan header;
};

static struct ml_scan_targets targets;
static const char no_room[] = "it holds more pointers than there is room for";

/* Bytes of a pointer, by the program's ELF class; the agent's own if that is unreadable. */
static ml_u32 word_bytes_of(int pid)
{
	char ident[EI_NIDENT + 1] = { 0 };

	if (ml_proc_read(pid, "exe", ident, sizeof(ident)) != EI_NIDENT)
		ident[EI_CLASS] = ELFCLASSNONE;
	return ident[EI_CLASS] == ELFCLASS32 ? 4 : ident[EI_CLASS] == ELFCLASS64 ? 8 : sizeof(void *);
}

static bool is_own(const struct ml_maps_line *line)
{
	for (size_t i = 0; i < sizeof(own_names) / sizeof(*own_names); i++)
		if (ml_process_maps_has(line, own_names[i]))
			return true;
	return false;
}

static bool is_writable(const char permissions[4])
{
	return permissions[0] == 'r' && permissions[1] == 'w';
}

/* Private memory of a file is a library's data and holds no blocks, unless the file is a device (ashmem) or in memory. */
static bool may_hold_blocks(const struct ml_maps_line *line)
{
	if (is_own(line) || ml_process_maps_has(line, RUNTIME))
		return false;
	if (line->permissions[3] == 's' || !line->inode)
		return true;
	return !strncmp(line->path, "/dev/", 5) || !strncmp(line->path, "/memfd:", 7);
}

static void find_targets(const char *maps)
{
	struct ml_maps_line line;

	for (const char *at = maps; (at = ml_process_maps_line(at, &line));)
		if (is_writable(line.permissions) && may_hold_blocks(&line))
			ml_scan_targets_add(&targets, line.start, line.end);
}

/* The start of the used part of a mapping: of a stack, its lowest thread's stack pointer. */
static ml_u64 bottom_of(const struct scan *scan, ml_u64 start, ml_u64 end)
{
	ml_u64 lowest = 0;

	for (size_t i = 0; i < scan->n_threads; i++) {
		ml_u64 pointer = scan->threads[i].stack_pointer;

		if (start <= pointer && pointer < end && (!lowest || pointer < lowest))
			lowest = pointer;
	}
	lowest = (lowest - (lowest < RED_ZONE_BYTES ? lowest : RED_ZONE_BYTES)) & ~7ull;
	return lowest > start ? lowest : start;
}

static void add_mapping(struct scan *scan, ml_u64 start, ml_u64 end)
{
	for (ml_u64 part_end; start < end; start = part_end) {
		part_end = ml_shim_memory_outside(&scan->shim, &start, end);
		ml_scan_pieces_add(&scan->pieces, start, part_end);
	}
}

static const char *read_memory(struct scan *scan)
{
	struct ml_maps_line line;

	ml_shim_memory_find(&scan->shim, (ml_u32)scan->pid, scan->maps);
	ml_scan_pieces_begin(&scan->pieces, scan->pid);
	for (const char *at = scan->maps; (at = ml_process_maps_line(at, &line));)
		if (is_writable(line.permissions) && !is_own(&line))
			add_mapping(scan, bottom_of(scan, line.start, line.end), line.end);
	if (ml_scan_pieces_end(&scan->pieces))
		return strerror(ENOMEM);
	if (ml_scanned_words_read(&scan->words, scan->pid, scan->pieces.all, scan->pieces.n))
		return no_room;
	return NULL;
}

/* Returns NULL, or the reason of a failure. */
static const char *scan_pieces(struct scan *scan)
{
	const char *reason;

	scan->header.timestamp_ns = ml_clock_ns();
	scan->maps = ml_process_maps_read((ml_u32)scan->pid, &scan->maps_bytes);
	if (!scan->maps)
		return "its mappings cannot be read";
	find_targets(scan->maps);
	reason = read_memory(scan);
	return reason || scan->words.scanned_bytes ? reason : "its memory cannot be read";
}

/*
 * Scans once while the process runs, and drops the result. This allocates the agent's memory and brings swapped pages back, so
 * that the stop is short: page faults of the agent were most of it. Returns NULL, or a reason not to stop the process at all.
 */
static const char *rehearse(struct scan *scan)
{
	const char *reason = scan_pieces(scan);

	free(scan->maps);
	scan->maps = NULL;
	return reason == no_room ? reason : NULL; /* the stop reports any other one with its cause */
}

static const char *read_threads(struct scan *scan, const struct ml_ptrace_threads *threads)
{
	scan->threads = calloc(threads->n, sizeof(*scan->threads));
	for (size_t i = 0; scan->threads && i < threads->n; i++) {
		if (threads->threads[i].is_late)
			return "a thread that waits in the kernel did not stop in time";
		if (threads->threads[i].is_gone)
			continue;
		scan->threads[scan->n_threads] = ml_stopped_thread_read(scan->pid, threads->threads[i].tid);
		if (!scan->threads[scan->n_threads++].n_registers)
			return "its registers cannot be read";
	}
	return scan->threads ? NULL : strerror(ENOMEM);
}

/* A process that job control has stopped can be scanned like any other, and stays stopped. */
static const char *stop_and_scan(struct scan *scan)
{
	struct ml_ptrace_threads threads = { 0 };
	const char *reason = rehearse(scan);
	ml_u64 begin_ns;

	if (reason)
		return reason;
	begin_ns = ml_clock_ns();
	if (ml_ptrace_stop_all(&threads, scan->pid, PATIENCE_MS) && errno != EBUSY)
		reason = errno == ESRCH ? "it has ended" : strerror(errno);
	if (!reason)
		reason = read_threads(scan, &threads);
	if (!reason)
		reason = scan_pieces(scan);
	ml_ptrace_let_others_go(&threads, NULL);
	scan->header.stopped_ns = ml_clock_ns() - begin_ns;
	ml_ptrace_free(&threads);
	return reason;
}

static const char *scan_held(struct scan *scan, const char *stack_pointer)
{
	struct ml_exit_stop thread = { .stack_pointer = strtoull(stack_pointer, NULL, 16) };
	const char *reason;

	scan->threads = &thread;
	scan->n_threads = 1;
	reason = scan_pieces(scan);
	scan->threads = NULL;
	scan->n_threads = 0;
	return reason;
}

static int write_scan(struct scan *scan)
{
	int gone;

	scan->header.scanned_bytes = scan->words.scanned_bytes;
	scan->header.word_bytes = scan->words.word_bytes;
	scan->header.n_threads = (ml_u32)scan->n_threads;
	gone = ml_blocks_write(ML_BLOCK_SCAN, &scan->header, sizeof(scan->header));
	gone |= ml_process_maps_write((ml_u32)scan->pid, scan->header.timestamp_ns, scan->maps, scan->maps_bytes);
	for (size_t i = 0; i < scan->n_threads && !gone; i += ROWS_AT_ONCE) {
		size_t rows = scan->n_threads - i < ROWS_AT_ONCE ? scan->n_threads - i : ROWS_AT_ONCE;

		gone = ml_blocks_write(ML_BLOCK_STOPPED_THREADS, scan->threads + i, rows * sizeof(*scan->threads));
	}
	return gone || ml_scanned_words_write(&scan->words) || ml_blocks_end(ML_REASON_STOPPED, -1);
}

int ml_memory_scan(int pid, const char *stack_pointer)
{
	struct scan scan = { .pid = pid };
	ml_u32 word_bytes = word_bytes_of(pid);
	const char *reason = NULL;

	if (word_bytes > sizeof(void *))
		reason = "it is a 64-bit process, and the agent a 32-bit one";
	else if (ml_scanned_words_start(&scan.words, &targets, word_bytes))
		reason = strerror(ENOMEM);
	if (!reason)
		reason = stack_pointer ? scan_held(&scan, stack_pointer) : stop_and_scan(&scan);
	if (!reason)
		return write_scan(&scan) ? 4 : 0;
	ml_blocks_error(ML_REASON_TARGET_ERROR, "process %d could not be searched: %s", pid, reason);
	ml_blocks_end(ML_REASON_TARGET_ERROR, -1);
	return 4;
}
