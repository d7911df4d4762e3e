// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/snoop/attach.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/patched_code.h"
#include "agent/probes/tracefs.h"
#include "agent/probes/uprobe_multi.h"

#define DETACHING_THREADS 64

/* Probes of one file in one process, in the arrays that the kernel needs. */
struct batch {
	struct ml_snoop *snoop;
	const char *path;
	int pid; /* -1 = every process */
	ml_u32 kind; /* enum ml_probe_kind */
	ml_u32 n;
	const struct ml_snoop_site *sites;
	ml_u64 *offsets, *cookies;
	ml_s32 *errors;
};

static const char *const programs[] = { /* by enum ml_probe_kind */
	"call_entry", "call_exit", "call_exit_at", "call_exit_at",
};

static int program_fd(const struct ml_snoop *snoop, const char *name)
{
	return bpf_program__fd(bpf_object__find_program_by_name(snoop->object, name));
}

/* ---- placing ------------------------------------------------------------------------------------- */

static int keep_multi(struct ml_snoop *snoop, int link)
{
	int *longer = realloc(snoop->multi_links, sizeof(int) * (snoop->n_multi_links + 1));

	if (!longer) {
		close(link);
		return ENOMEM;
	}
	snoop->multi_links = longer;
	longer[snoop->n_multi_links++] = link;
	return 0;
}

static int keep_perf(struct ml_snoop *snoop, struct bpf_link *link)
{
	struct bpf_link **longer = realloc(snoop->perf_links, sizeof(*longer) * (snoop->n_perf_links + 1));

	if (!longer) {
		bpf_link__destroy(link);
		return ENOMEM;
	}
	snoop->perf_links = longer;
	longer[snoop->n_perf_links++] = link;
	return 0;
}

/* Attaches probes first … first + n - 1 by one link. If the kernel refuses, halves them, down to the probe that causes the error. */
static void place_multi(struct batch *batch, ml_u32 first, ml_u32 n)
{
	const struct ml_uprobe_multi probes = {
		.path = batch->path, .offsets = batch->offsets + first, .cookies = batch->cookies + first, .n = n,
		.pid = batch->pid, .at_return = batch->kind == ML_PROBE_RETURN,
	};
	int link = ml_uprobe_multi_link(program_fd(batch->snoop, programs[batch->kind]), &probes);
	int error = link < 0 ? errno : keep_multi(batch->snoop, link);

	if (!error)
		return;
	if (n == 1) {
		batch->errors[first] = error;
		return;
	}
	place_multi(batch, first, n / 2);
	place_multi(batch, first + n / 2, n - n / 2);
}

static int place_perf(struct batch *batch, ml_u32 i)
{
	LIBBPF_OPTS(bpf_uprobe_opts, how, .retprobe = batch->kind == ML_PROBE_RETURN,
		    .bpf_cookie = batch->snoop->has_cookies ? batch->cookies[i] : 0);
	struct bpf_program *program = bpf_object__find_program_by_name(batch->snoop->object, programs[batch->kind]);
	struct bpf_link *link = bpf_program__attach_uprobe_opts(program, batch->pid, batch->path, batch->offsets[i], &how);

	return link ? keep_perf(batch->snoop, link) : errno;
}

static int write_results(const struct batch *batch, int *n_placed)
{
	struct ml_probe_result *results = calloc(batch->n, sizeof(*results));
	int result = results ? 0 : -1;

	for (ml_u32 i = 0; i < batch->n && results; i++) {
		results[i] = (struct ml_probe_result){
			.function = batch->sites[i].function,
			.pid = batch->pid > 0 ? (ml_u32)batch->pid : 0,
			.error = batch->errors[i],
			.way = batch->snoop->has_multi ? ML_PROBE_MULTI : ML_PROBE_PERF,
			.kind = (ml_u16)batch->kind,
		};
		*n_placed += !batch->errors[i] && batch->kind == ML_PROBE_ENTRY;
	}
	if (results)
		result = ml_blocks_write(ML_BLOCK_PROBE_RESULTS, results, sizeof(*results) * batch->n);
	free(results);
	return result;
}

/* A uprobe in them would end the process (patched_code.h). */
static int leave_out_patched(struct batch *batch)
{
	struct ml_probed_address *sites = calloc(batch->n, sizeof(*sites));

	for (ml_u32 i = 0; i < batch->n && sites; i++)
		sites[i] = (struct ml_probed_address){ .function = batch->offsets[i], .offset = batch->offsets[i] };
	if (sites && (batch->pid > 0 ? ml_patched_code_find(batch->pid, batch->path, sites, batch->n) :
					ml_patched_code_find_all(batch->path, sites, batch->n)))
		for (ml_u32 i = 0; i < batch->n; i++)
			batch->errors[i] = sites[i].address ? ML_PROBE_ERROR_PATCHED : 0;
	free(sites);
	return sites ? 0 : -1;
}

static void place_runs(struct batch *batch)
{
	for (ml_u32 first = 0, end; first < batch->n; first = end) {
		for (end = first; end < batch->n && !batch->errors[end];)
			end++;
		if (end > first)
			place_multi(batch, first, end - first);
		else
			end++;
	}
}

static int attach_batch(struct batch *batch, int *n_placed)
{
	int result = -1;

	batch->offsets = calloc(batch->n, sizeof(*batch->offsets));
	batch->cookies = calloc(batch->n, sizeof(*batch->cookies));
	batch->errors = calloc(batch->n, sizeof(*batch->errors));
	if (batch->offsets && batch->cookies && batch->errors) {
		for (ml_u32 i = 0; i < batch->n; i++) {
			batch->offsets[i] = batch->sites[i].offset;
			batch->cookies[i] = batch->sites[i].function | (batch->kind == ML_PROBE_TAIL ? ML_SNOOP_TAIL : 0);
		}
		result = leave_out_patched(batch);
		if (!result && batch->snoop->has_multi)
			place_runs(batch);
		for (ml_u32 i = 0; i < batch->n && !result && !batch->snoop->has_multi; i++)
			if (!batch->errors[i])
				batch->errors[i] = place_perf(batch, i);
		result = result ? result : write_results(batch, n_placed);
	}
	free(batch->offsets);
	free(batch->cookies);
	free(batch->errors);
	return result;
}

/* 0, or -1 after an ERROR block: with --follow, tracing only some of the children would be misleading. */
static int follow_children(struct ml_snoop *snoop)
{
	struct bpf_program *program = bpf_object__find_program_by_name(snoop->object, "process_fork");

	if (!snoop->has_cookies) {
		ml_blocks_error(ML_REASON_TRACER_ERROR, "--follow needs cookies of probes, Linux 5.15 (leave --follow out)");
		return -1;
	}
	if (ml_tracefs_field("task/task_newtask", "pid") > 0)
		snoop->tracepoints[2] = bpf_program__attach_tracepoint(program, "task", "task_newtask");
	if (snoop->tracepoints[2])
		return 0;
	ml_blocks_error(ML_REASON_TRACER_ERROR, "could not follow forks, which --follow needs: no fields of task_newtask (mount tracefs, or drop --follow)");
	return -1;
}

static void follow_threads(struct ml_snoop *snoop)
{
	static const char *const names[][2] = { { "thread_exit", "sched_process_exit" }, { "process_exec", "sched_process_exec" } };

	for (int i = 0; i < 2; i++) {
		struct bpf_program *program = bpf_object__find_program_by_name(snoop->object, names[i][0]);

		snoop->tracepoints[i] = bpf_program__attach_raw_tracepoint(program, names[i][1]);
		if (!snoop->tracepoints[i])
			ml_blocks_log("could not attach to %s: %s", names[i][1], strerror(errno));
	}
}

int ml_snoop_attach(struct ml_snoop *snoop, const struct ml_snoop_config *config, int command_pid)
{
	int n_placed = 0;

	follow_threads(snoop);
	if (config->session.follow && follow_children(snoop))
		return -1;
	for (ml_u32 first = 0, end; first < config->n_sites; first = end) {
		const struct ml_snoop_file *file = &config->files[config->sites[first].file];
		struct batch batch = {
			.snoop = snoop, .path = file->path, .kind = config->sites[first].kind, .sites = &config->sites[first],
			.pid = config->session.follow ? -1 : file->pid ? file->pid : command_pid,
		};

		for (end = first; end < config->n_sites && config->sites[end].file == config->sites[first].file &&
				  config->sites[end].kind == batch.kind;)
			end++;
		batch.n = end - first;
		if (attach_batch(&batch, &n_placed))
			return -1;
	}
	return n_placed;
}

/* ---- detaching ----------------------------------------------------------------------------------- */

struct share {
	struct ml_snoop *snoop;
	ml_u32 first;
};

static void *detach_share(void *argument)
{
	const struct share *share = argument;

	for (ml_u32 i = share->first; i < share->snoop->n_perf_links; i += DETACHING_THREADS)
		bpf_link__destroy(share->snoop->perf_links[i]);
	return NULL;
}

/* The kernel waits for a grace period at each perf event: many at once, and not one after another. */
static void detach_perf(struct ml_snoop *snoop)
{
	struct share shares[DETACHING_THREADS];
	pthread_t threads[DETACHING_THREADS];
	bool is_started[DETACHING_THREADS];

	for (ml_u32 i = 0; i < DETACHING_THREADS; i++) {
		shares[i] = (struct share){ snoop, i };
		is_started[i] = i < snoop->n_perf_links && !pthread_create(&threads[i], NULL, detach_share, &shares[i]);
		if (!is_started[i])
			detach_share(&shares[i]);
	}
	for (int i = 0; i < DETACHING_THREADS; i++)
		if (is_started[i])
			pthread_join(threads[i], NULL);
}

/* Entries were placed first, and go last. */
static void detach(struct ml_snoop *snoop)
{
	for (ml_u32 i = snoop->n_multi_links; i; i--)
		close(snoop->multi_links[i - 1]);
	detach_perf(snoop);
	free(snoop->multi_links);
	free(snoop->perf_links);
	snoop->multi_links = NULL;
	snoop->perf_links = NULL;
	snoop->n_multi_links = snoop->n_perf_links = 0;
	for (int i = 0; i < 3; i++) {
		bpf_link__destroy(snoop->tracepoints[i]);
		snoop->tracepoints[i] = NULL;
	}
}

void ml_snoop_close(struct ml_snoop *snoop)
{
	detach(snoop);
	ring_buffer__free(snoop->calls);
	ring_buffer__free(snoop->stacks);
	if (snoop->statistics)
		munmap(snoop->statistics, snoop->statistics_bytes);
	if (snoop->control)
		munmap(snoop->control, (size_t)sysconf(_SC_PAGESIZE));
	bpf_object__close(snoop->object);
	snoop->calls = snoop->stacks = NULL;
	snoop->statistics = NULL;
	snoop->control = NULL;
	snoop->object = NULL;
}
