// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/spared.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/process_maps.h"
#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"
#include "agent/ptrace/threads.h"

#define NAMED_MAX 8 /* logged; the others are only counted */
#define STOP_MS 200
#define ALL_STOPS_NS 2000000000ull /* then no more are stopped, so that a user with many processes cannot hold a session */
#define KEPT_MAX (1u << 18)

struct kept {
	ml_u64 address;
	ml_u8 code[ML_CODE_STEP];
};

/* In the worker. */
struct spared_process {
	struct ml_ptrace_threads threads;
	int memory_fd; /* of the address space at the stop, whatever becomes of the pid */
	struct kept *kept;
	size_t n, room;
};

/* The probes of one file. */
struct offsets {
	const ml_u64 *offsets;
	size_t n;
	struct stat file;
};

/* ---- finding ------------------------------------------------------------------------------------------ */

struct finding {
	struct ml_spared *spared;
	int except;
	bool has_failed;
};

static void name(const struct ml_spared *spared, int pid)
{
	char comm[16] = "";

	ml_process_name((ml_u32)pid, comm);
	if (spared->n <= NAMED_MAX)
		ml_blocks_gap(ML_GAP_PROGRAMS_LEFT_OUT,
			      "process %d (%s) is left out: another tool has hooked its code, and a uprobe would crash it "
			      "(measure it by --tracer plt)",
			      pid, comm);
	if (spared->n == NAMED_MAX + 1)
		ml_blocks_gap(ML_GAP_PROGRAMS_LEFT_OUT, "further processes with hooks of another tool are left out");
}

static void spare(void *context, int pid)
{
	struct finding *finding = context;
	struct ml_spared *spared = finding->spared;

	if (pid == finding->except)
		return;
	for (size_t i = 0; i < spared->n; i++)
		if (spared->pids[i] == pid)
			return;
	if (!ML_EXTEND(spared->pids, spared->n, spared->room)) {
		finding->has_failed = true;
		return;
	}
	spared->pids[spared->n++] = pid;
	name(spared, pid);
}

int ml_spared_find(struct ml_spared *spared, const struct ml_probed_file *file, struct ml_probed_address *probes, size_t n,
		   int except)
{
	struct finding finding = { spared, except, false };

	ml_patched_code_find_all(file, probes, n, spare, &finding);
	return finding.has_failed ? -1 : 0;
}

/* ---- while probes are placed -------------------------------------------------------------------------- */

static void keep(struct spared_process *process, ml_u64 address)
{
	struct kept kept = { .address = address };

	if (process->n < KEPT_MAX && ML_EXTEND(process->kept, process->n, process->room) &&
	    pread(process->memory_fd, kept.code, sizeof(kept.code), (off_t)address) == (ssize_t)sizeof(kept.code))
		process->kept[process->n++] = kept;
}

static void keep_code(const struct offsets *probes, struct spared_process *process, int pid)
{
	char *text = ml_process_maps_read((ml_u32)pid, NULL);
	struct ml_maps_line line;

	for (const char *at = text; (at = ml_process_maps_code(at, &line));)
		for (size_t i = 0; i < probes->n && line.inode == probes->file.st_ino &&
				   makedev(line.major, line.minor) == probes->file.st_dev;
		     i++)
			if (probes->offsets[i] - line.offset < line.end - line.start)
				keep(process, line.start + (probes->offsets[i] - line.offset));
	free(text);
}

static void give_back(const struct spared_process *process)
{
	for (size_t i = 0; i < process->n; i++) {
		const struct kept *kept = &process->kept[i];
		ml_u8 now[ML_CODE_STEP];

		if (pread(process->memory_fd, now, sizeof(now), (off_t)kept->address) == (ssize_t)sizeof(now) &&
		    memcmp(now, kept->code, sizeof(now)) && ml_code_agrees(now, kept->code, sizeof(now)) &&
		    pwrite(process->memory_fd, kept->code, sizeof(now), (off_t)kept->address) < 0)
			return; /* it has ended */
	}
}

/* One that cannot be stopped, such as one in a debugger, gets its code back all the same, if it does not call too soon. */
static void work(const struct ml_spared *spared, const struct offsets *probes, int orders, int results)
{
	struct spared_process *processes = calloc(spared->n, sizeof(*processes));
	ml_u64 until_ns = ml_clock_ns() + ALL_STOPS_NS;
	char byte = 0;

	for (size_t i = 0; processes && i < spared->n; i++) {
		if (ml_clock_ns() < until_ns)
			ml_ptrace_stop_all(&processes[i].threads, spared->pids[i], STOP_MS);
		processes[i].memory_fd = ml_proc_open(spared->pids[i], "mem", O_RDWR);
		if (processes[i].memory_fd >= 0)
			keep_code(probes, &processes[i], spared->pids[i]);
	}
	if (!processes || write(results, &byte, 1) != 1)
		return;
	while (read(orders, &byte, 1) < 0 && errno == EINTR)
		;
	for (size_t i = 0; i < spared->n; i++) {
		give_back(&processes[i]);
		ml_ptrace_let_others_go(&processes[i].threads, NULL);
	}
}

/* In the worker: of the agent's pipes only the two are left, so that each end is noticed. */
static void run_worker(const struct ml_spared *spared, const struct offsets *probes, int orders[2], int results[2])
{
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	close(orders[1]);
	close(results[0]);
	work(spared, probes, orders[0], results[1]);
	_exit(0);
}

static int start(struct ml_spared_hold *hold, const struct ml_spared *spared, const struct offsets *probes, int orders[2],
		 int results[2])
{
	char byte;
	ssize_t n;

	hold->worker = fork();
	if (!hold->worker)
		run_worker(spared, probes, orders, results);
	close(orders[0]);
	close(results[1]);
	hold->orders = orders[1];
	do
		n = hold->worker < 0 ? -1 : read(results[0], &byte, 1);
	while (n < 0 && errno == EINTR);
	close(results[0]);
	if (n == 1)
		return 0;
	ml_spared_end(hold);
	errno = ENOMEM;
	return -1;
}

int ml_spared_begin(struct ml_spared_hold *hold, const struct ml_spared *spared, const char *path, const ml_u64 *offsets,
		    size_t n)
{
	struct offsets probes = { .offsets = offsets, .n = n };
	int orders[2], results[2];

	*hold = (struct ml_spared_hold){ 0 };
	if (!spared->n || stat(path, &probes.file))
		return 0;
	if (pipe2(orders, O_CLOEXEC))
		return -1;
	if (!pipe2(results, O_CLOEXEC))
		return start(hold, spared, &probes, orders, results);
	close(orders[0]);
	close(orders[1]);
	return -1;
}

void ml_spared_end(struct ml_spared_hold *hold)
{
	if (!hold->worker)
		return;
	close(hold->orders);
	if (hold->worker > 0)
		waitpid(hold->worker, NULL, 0);
	hold->worker = 0;
}
