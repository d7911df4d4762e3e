// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/patch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/patched_code.h"
#include "agent/inject/patch_threads.h"
#include "agent/ptrace/threads.h"
#include "agent/process/proc_file.h"
#include "agent/process/target_objects.h"

#define SEARCH_NS (2000ull * 1000 * 1000)
#define STOP_TIMEOUT_MS 50
#define PAUSE_US 2000
#define PAGE_BYTES 4096 /* the smallest page size */

struct work {
	pid_t pid;
	bool is_apply;
	const struct ml_patches *patches;
	struct ml_patch_result *result;
	struct ml_ptrace_threads threads;
	int memory; /* /proc/PID/mem: writes whatever the protection is */
	pid_t stopped_tid; /* one of the stopped threads */
};

int ml_patch_fill_slots(pid_t pid, const struct ml_patches *patches, struct ml_refusal *refusal)
{
	for (size_t i = 0; i < patches->n_slots; i++)
		if (ml_target_write((ml_u32)pid, patches->slots[i].address, &patches->slots[i].value, sizeof(long)))
			return ml_refuse(refusal,
					 "the memory of process %d cannot be written: %s (run as its user, or as root)", pid,
					 strerror(errno));
	return 0;
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static bool read_code(const struct work *work, ml_u64 address, ml_u8 *bytes, size_t n)
{
	return pread(work->memory, bytes, n, (off_t)address) == (ssize_t)n;
}

static bool holds(const struct work *work, ml_u64 address, const ml_u8 *bytes, size_t n)
{
	ml_u8 there[256];

	return n <= sizeof(there) && read_code(work, address, there, n) && !memcmp(there, bytes, n);
}

/*
 * For a kernel that refuses writes through the file (proc_mem.force_override). The kernel writes a word at once, whatever its alignment:
 * if this process is killed meanwhile, a jump of up to a word is there or not, but never a part of it.
 */
static int poke(const struct work *work, ml_u64 address, const ml_u8 *bytes, size_t n)
{
	ml_u64 last = ((address + n - 1) | (PAGE_BYTES - 1)) + 1 - sizeof(long);

	for (size_t done = 0; done < n;) {
		ml_u64 at = address + done < last ? address + done : last;
		size_t skipped = (size_t)(address + done - at);
		size_t taken = sizeof(long) - skipped < n - done ? sizeof(long) - skipped : n - done;
		long word;

		errno = 0;
		word = ptrace(PTRACE_PEEKTEXT, work->stopped_tid, (void *)(size_t)at, NULL);
		if (errno)
			return -1;
		memcpy((char *)&word + skipped, bytes + done, taken);
		if (ptrace(PTRACE_POKETEXT, work->stopped_tid, (void *)(size_t)at, (void *)word))
			return -1;
		done += taken;
	}
	return 0;
}

/* Writes bytes that differ, and reads them back. 0, or -1: they are not all written. */
static int write_code(const struct work *work, ml_u64 address, const ml_u8 *bytes, size_t n)
{
	if (holds(work, address, bytes, n))
		return 0;
	if (pwrite(work->memory, bytes, n, (off_t)address) != (ssize_t)n && poke(work, address, bytes, n))
		return -1;
	return holds(work, address, bytes, n) ? 0 : -1;
}

/* ---- comparing ------------------------------------------------------------------------------------------- */

static const ml_u8 *bytes_before(const struct work *work, const struct ml_patch *patch)
{
	return work->is_apply ? patch->expected : patch->patch;
}

/* Unused memory, or code of an earlier session, which a thread may still run. */
static bool is_free(const struct work *work, const struct ml_patch *patch)
{
	static const ml_u8 nothing[ML_PATCH_CODE_MAX];

	return holds(work, patch->trampoline, nothing, patch->n_code) ||
	       holds(work, patch->trampoline, patch->code, patch->n_code);
}

static bool is_as_expected(const struct work *work, const struct ml_patch *patch)
{
	return holds(work, patch->address, bytes_before(work, patch), patch->n_bytes);
}

/* Compares the code before the patch with its file, except for breakpoints: a jump there would bypass the patch. */
static bool is_kept(const struct work *work, const struct ml_patch *patch)
{
	ml_u8 there[ML_PATCH_KEPT_MAX];

	return read_code(work, patch->address - patch->n_kept, there, patch->n_kept) &&
	       ml_code_agrees(there, patch->kept, patch->n_kept);
}

static int check(const struct work *work)
{
	for (size_t i = 0; i < work->patches->n; i++) {
		const struct ml_patch *patch = &work->patches->patches[i];
		bool kept = is_kept(work, patch);

		if (!kept || !is_as_expected(work, patch))
			return ml_refuse(
				&work->result->refusal,
				"the code at %#llx of process %d differs from its file: a debugger, a uprobe or another "
				"hook has changed it (remove that)",
				(unsigned long long)(patch->address - (kept ? 0 : patch->n_kept)), work->pid);
		if (!is_free(work, patch))
			return ml_refuse(&work->result->refusal,
					 "the room for moved code at %#llx of process %d is in use (restart the process)",
					 (unsigned long long)patch->trampoline, work->pid);
	}
	return 0;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

/* Restores the first n patches, which were checked a moment ago. */
static void undo(const struct work *work, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct ml_patch *patch = &work->patches->patches[i];

		write_code(work, patch->address, bytes_before(work, patch), patch->n_bytes);
	}
}

static void report_changed(const struct work *work, const struct ml_patch *patch)
{
	bool is_out = holds(work, patch->address, patch->expected, patch->n_bytes);

	ml_refuse(&work->result->refusal, "the code at %#llx of process %d is not our jump any more%s",
		  (unsigned long long)patch->address, work->pid,
		  is_out ? ": another tool restored the original code, and calls since then are not counted" :
			   ", and was left as it is");
}

static int write_all(const struct work *work)
{
	for (size_t i = 0; i < work->patches->n; i++) {
		const struct ml_patch *patch = &work->patches->patches[i];

		if (!work->is_apply && !is_as_expected(work, patch)) {
			report_changed(work, patch);
			continue;
		}
		if ((work->is_apply && write_code(work, patch->trampoline, patch->code, patch->n_code)) ||
		    write_code(work, patch->address, work->is_apply ? patch->patch : patch->expected, patch->n_bytes)) {
			undo(work, i + 1);
			return ml_refuse(&work->result->refusal,
					 "code of process %d cannot be written at %#llx: %s (use --tracer bpf)", work->pid,
					 (unsigned long long)patch->address, strerror(errno));
		}
	}
	return 0;
}

/* ---- with all threads stopped ---------------------------------------------------------------------------- */

/* 1: done, 0: a thread is inside a patch, -1: refused. */
static int change(struct work *work)
{
	struct ml_patch_threads threads = { work->patches, work->is_apply, work->threads.threads, work->threads.n, -1 };
	int result;

	work->stopped_tid = 0;
	for (size_t i = 0; i < work->threads.n; i++)
		if (work->threads.threads[i].is_stopped)
			work->stopped_tid = work->threads.threads[i].tid;
		else if (!work->threads.threads[i].is_gone)
			return 0;
	work->memory = work->stopped_tid ? ml_proc_open(work->pid, "mem", O_RDWR) : -1;
	if (work->memory < 0)
		return ml_refuse(&work->result->refusal,
				 "the memory of process %d cannot be opened (run as its user, or as root)", work->pid);
	threads.memory = work->memory;
	result = work->is_apply ? check(work) : 0;
	if (!result)
		result = !ml_patch_threads_are_clear(&threads, (ml_u32)work->pid) ? 0 : write_all(work) ? -1 : 1;
	if (result == 1)
		ml_patch_threads_move(&threads);
	close(work->memory);
	return result;
}

static int refuse_threads(struct work *work)
{
	struct ml_refusal *refusal = &work->result->refusal;
	pid_t child = ml_inject_child_in_memory(work->pid);

	if (child)
		return ml_refuse(
			refusal,
			"process %d, a child of vfork(), runs in the memory of process %d, whose code is to be changed "
			"(wait for its exec, or use --tracer plt or bpf)",
			child, work->pid);
	return ml_refuse(refusal,
			 "for 2 s some thread of process %d was inside code that must be patched (try again, or use "
			 "--tracer bpf)",
			 work->pid);
}

/* Stops all threads until none is inside a patch, for 2 s at most. */
static int run(struct work *work)
{
	ml_u64 deadline_ns = ml_clock_ns() + SEARCH_NS;
	int done = 0;

	while (!done) {
		int error = ml_ptrace_stop_all(&work->threads, work->pid, STOP_TIMEOUT_MS) ? errno : 0;

		work->result->n_attempts++;
		if (!error)
			done = change(work);
		work->result->n_threads = (ml_u32)work->threads.n;
		ml_ptrace_let_others_go(&work->threads, NULL);
		ml_stop_times_add(&work->result->stops, ML_STOPPED_ALL, work->threads.longest_stop_ns, work->result->n_threads);
		if (error && (error != EPERM || !ml_inject_is_traced(work->pid) || ml_clock_ns() > deadline_ns))
			return ml_inject_refuse_stop(work->pid, error, &work->result->refusal);
		if (!done && ml_clock_ns() > deadline_ns)
			return refuse_threads(work);
		if (!done)
			usleep(PAUSE_US);
	}
	return done == 1 ? 0 : -1;
}

int ml_patch_change(pid_t pid, const struct ml_patches *patches, bool is_apply, struct ml_patch_result *result)
{
	struct work work = { .pid = pid, .is_apply = is_apply, .patches = patches, .result = result };
	int failed;

	memset(result, 0, sizeof(*result));
	failed = run(&work);
	ml_ptrace_free(&work.threads);
	return failed;
}
