// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/object.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/patched_code.h"
#include "agent/probes/probed_file.h"
#include "agent/probes/tracefs.h"

/* Probes of one file in one process, in the arrays that the kernel needs. */
struct batch {
	struct ml_snoop *snoop;
	struct ml_probed_file *file;
	int target;
	int pid; /* of probes; -1 = every process */
	ml_u32 kind; /* enum ml_probe_kind */
	ml_u32 n;
	const struct ml_snoop_site *sites;
	ml_u64 *offsets, *cookies;
	ml_s32 *errors;
};

static const char *const programs[] = { /* by enum ml_probe_kind */
					"call_entry", "call_exit", "call_exit_at", "call_exit_at"
};

static struct bpf_program *program(const struct ml_snoop *snoop, const char *name)
{
	return bpf_object__find_program_by_name(snoop->object, name);
}

/* ---- placing ------------------------------------------------------------------------------------- */

static int write_results(const struct batch *batch, int *n_placed)
{
	struct ml_probe_result *results = calloc(batch->n, sizeof(*results));
	int result = results ? 0 : -1;

	for (ml_u32 i = 0; i < batch->n && results; i++) {
		results[i] = (struct ml_probe_result){ .function = batch->sites[i].function,
						       .pid = batch->pid > 0 ? (ml_u32)batch->pid : 0,
						       .error = batch->errors[i],
						       .way = batch->snoop->has_multi ? ML_PROBE_MULTI : ML_PROBE_PERF,
						       .kind = (ml_u16)batch->kind };
		*n_placed += !batch->errors[i] && batch->kind == ML_PROBE_ENTRY;
	}
	if (results)
		result = ml_blocks_write(ML_BLOCK_PROBE_RESULTS, results, sizeof(*results) * batch->n);
	free(results);
	return result;
}

/* A uprobe in patched code would end the process (patched_code.h): functions of a target are left out, other processes spared. */
static int leave_out_patched(struct batch *batch)
{
	struct ml_probed_address *sites = calloc(batch->n, sizeof(*sites));
	int result = sites ? 0 : -1;

	for (ml_u32 i = 0; i < batch->n && sites; i++)
		sites[i] = (struct ml_probed_address){ .function = batch->offsets[i], .offset = batch->offsets[i] };
	if (sites && ml_patched_code_find(batch->target, batch->file, sites, batch->n))
		for (ml_u32 i = 0; i < batch->n; i++) {
			batch->errors[i] = sites[i].address ? ML_PROBE_ERROR_PATCHED : 0;
			sites[i].address = 0;
		}
	if (sites && batch->pid < 0)
		result = ml_spared_find(&batch->snoop->links.spared, batch->file, sites, batch->n, batch->target);
	free(sites);
	return result;
}

static void place(struct batch *batch)
{
	const struct ml_uprobe_multi probes = { .path = batch->file->by_descriptor,
						.offsets = batch->offsets,
						.cookies = batch->cookies,
						.n = batch->n,
						.pid = batch->pid,
						.at_return = batch->kind == ML_PROBE_RETURN };

	ml_links_place(&batch->snoop->links, program(batch->snoop, programs[batch->kind]), &probes, batch->snoop->has_multi,
		       batch->errors);
}

/* -1: out of memory. What cannot be placed has its error. */
static int place_unpatched(struct batch *batch)
{
	int error = ml_probed_file_open(batch->file), result;

	for (ml_u32 i = 0; error && i < batch->n; i++)
		batch->errors[i] = error;
	if (error)
		return 0;
	result = leave_out_patched(batch);
	if (!result)
		place(batch);
	ml_probed_file_close(batch->file);
	return result;
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
			if (batch->snoop->has_cookies)
				batch->cookies[i] =
					batch->sites[i].function | (batch->kind == ML_PROBE_TAIL ? ML_SNOOP_TAIL : 0);
		}
		result = place_unpatched(batch) ? -1 : write_results(batch, n_placed);
	}
	free(batch->offsets);
	free(batch->cookies);
	free(batch->errors);
	return result;
}

/* 0, or -1 after an ERROR block: with --follow, tracing only some of the children would be misleading. */
static int follow_children(struct ml_snoop *snoop)
{
	if (!snoop->has_cookies)
		return ml_blocks_error(ML_REASON_TRACER_ERROR,
				       "--follow needs cookies of probes, Linux 5.15 (leave --follow out)");
	if (ml_tracefs_field("task/task_newtask", "pid") > 0 &&
	    !ml_links_keep(&snoop->links,
			   bpf_program__attach_tracepoint(program(snoop, "process_fork"), "task", "task_newtask")))
		return 0;
	return ml_blocks_error(
		ML_REASON_TRACER_ERROR,
		"could not follow forks, which --follow needs: no fields of task_newtask (mount tracefs, or drop --follow)");
}

static void follow_threads(struct ml_snoop *snoop)
{
	static const char *const names[][2] = { { "thread_exit", "sched_process_exit" },
						{ "process_exec", "sched_process_exec" } };

	for (int i = 0; i < 2; i++) {
		int error = ml_links_keep(&snoop->links,
					  bpf_program__attach_raw_tracepoint(program(snoop, names[i][0]), names[i][1]));

		if (error)
			ml_blocks_log("could not attach to %s: %s", names[i][1], strerror(error));
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
		struct batch batch = { .snoop = snoop,
				       .file = &config->session.files[file->file],
				       .kind = config->sites[first].kind,
				       .sites = &config->sites[first],
				       .target = file->pid ? file->pid : command_pid };

		batch.pid = config->session.follow ? -1 : batch.target;
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

void ml_snoop_close(struct ml_snoop *snoop)
{
	ml_links_close(&snoop->links);
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
