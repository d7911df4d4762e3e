// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/object.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/probes/libbpf.h"
#include "agent/process/signature_mask.h"
#include "agent/process/thread_states.h"
#include "agent/probes/tracefs.h"

#define STACK_RING_BYTES (64u << 20)
/* Files that links and perf events need at most. */
#define FILES_MAX (256u << 10)

extern const unsigned char ml_bpf_snoop_start[], ml_bpf_snoop_end[];
extern const unsigned char ml_bpf_snoop_old_start[], ml_bpf_snoop_old_end[];

static int fail(const char *what, int error)
{
	return ml_libbpf_fail(what, error, error == EPERM || error == EACCES ? "run as root" : "see memleak-android doctor");
}

static int set_options(const struct ml_snoop *snoop, const struct ml_snoop_config *config)
{
	struct bpf_map *map = bpf_object__find_map_by_name(snoop->object, ML_SNOOP_OPTIONS_SECTION);
	struct ml_snoop_options options = {
		.process = snoop->only,
		.has_threads = config->n_threads != 0,
		.has_cookies = snoop->has_cookies,
		.events = config->session.events,
		.stack_bytes = config->session.stack_bytes,
		.rate = config->rate,
		.signature_mask = ml_signature_mask(),
		.quiet_flags = BPF_RB_NO_WAKEUP,
		.fork_pid = config->session.follow ? ml_tracefs_offset("task/task_newtask", "pid") : 0,
		.fork_flags = config->session.follow ? ml_tracefs_offset("task/task_newtask", "clone_flags") : 0,
	};

	return map ? bpf_map__set_initial_value(map, &options, sizeof(options)) : -ENOENT;
}

static void set_size(const struct ml_snoop *snoop, const char *map, ml_u32 entries)
{
	bpf_map__set_max_entries(bpf_object__find_map_by_name(snoop->object, map), entries ? entries : 1);
}

static void set_attach_type(const struct ml_snoop *snoop)
{
	static const char *const probes[] = { "call_entry", "call_exit", "call_exit_at" };

	for (int i = 0; i < 3 && snoop->has_multi; i++)
		bpf_program__set_expected_attach_type(bpf_object__find_program_by_name(snoop->object, probes[i]),
						      (enum bpf_attach_type)BPF_TRACE_UPROBE_MULTI);
}

/* 0, or an errno. */
static int load_object(struct ml_snoop *snoop, const struct ml_snoop_config *config)
{
	const unsigned char *start = snoop->is_old ? ml_bpf_snoop_old_start : ml_bpf_snoop_start;
	const unsigned char *end = snoop->is_old ? ml_bpf_snoop_old_end : ml_bpf_snoop_end;
	int error;

	snoop->object = bpf_object__open_mem(start, (size_t)(end - start), NULL);
	if (!snoop->object)
		return errno;
	set_size(snoop, "functions", config->n_functions);
	set_size(snoop, "statistics", config->n_functions);
	set_size(snoop, "calls", (ml_u32)config->session.ring_bytes);
	if (config->session.stack_bytes)
		set_size(snoop, "stacks", STACK_RING_BYTES);
	set_size(snoop, "addresses", snoop->has_cookies ? 1 : config->n_sites * 2); /* of all processes */
	set_attach_type(snoop);
	bpf_program__set_autoload(bpf_object__find_program_by_name(snoop->object, "process_fork"), config->session.follow);
	error = set_options(snoop, config);
	if (!error)
		error = bpf_object__load(snoop->object);
	if (!error)
		return 0;
	bpf_object__close(snoop->object);
	snoop->object = NULL;
	return -error;
}

static int map_fd(const struct ml_snoop *snoop, const char *name)
{
	return bpf_object__find_map_fd_by_name(snoop->object, name);
}

static int open_maps(struct ml_snoop *snoop)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	snoop->statistics_bytes = (snoop->n_functions * sizeof(*snoop->statistics) + page - 1) & ~(page - 1);
	snoop->statistics = ml_libbpf_map(snoop->object, "statistics", snoop->statistics_bytes);
	snoop->control = ml_libbpf_map(snoop->object, "control", page);
	return snoop->statistics && snoop->control ? 0 : -1;
}

static int fill_maps(struct ml_snoop *snoop, const struct ml_snoop_config *config)
{
	ml_u32 one = 1;

	for (ml_u32 i = 0; i < config->n_functions; i++)
		if (bpf_map_update_elem(map_fd(snoop, "functions"), &i, &config->functions[i], BPF_ANY))
			return -1;
	for (int i = 0; i < config->n_threads; i++)
		if (bpf_map_update_elem(map_fd(snoop, "wanted_threads"), &config->threads[i], &one, BPF_ANY))
			return -1;
	return 0;
}

int ml_snoop_add_process(struct ml_snoop *snoop, ml_u32 tgid)
{
	ml_u32 one = 1;

	return bpf_map_update_elem(map_fd(snoop, "processes"), &tgid, &one, BPF_ANY);
}

/* Removes ended processes: their pids may be reused. */
bool ml_snoop_has_processes(struct ml_snoop *snoop)
{
	int fd = map_fd(snoop, "processes");
	ml_u32 tgid, next;
	bool is_any = false;

	for (bool is_there = !bpf_map_get_next_key(fd, NULL, &tgid); is_there; tgid = next) {
		is_there = !bpf_map_get_next_key(fd, &tgid, &next);
		if (ml_process_has_ended(tgid, -1))
			bpf_map_delete_elem(fd, &tgid);
		else
			is_any = true;
	}
	return is_any;
}

int ml_snoop_add_address(struct ml_snoop *snoop, ml_u32 tgid, ml_u64 address, ml_u32 cookie)
{
	struct ml_snoop_address key = { .address = address, .tgid = tgid };

	return bpf_map_update_elem(map_fd(snoop, "addresses"), &key, &cookie, BPF_ANY);
}

static int load(struct ml_snoop *snoop, const struct ml_snoop_config *config)
{
	int error;

	snoop->has_multi = snoop->has_cookies && !config->without_multi && !config->without_atomics &&
			   ml_uprobe_multi_sees(ML_CALLS_OF_THREADS);
	snoop->is_old = config->without_atomics;
	error = load_object(snoop, config);
	if (error && error != EPERM && !snoop->is_old) {
		snoop->is_old = true;
		snoop->has_multi = false;
		error = load_object(snoop, config);
	}
	if (error)
		return fail("could not load the BPF programs", error);
	return open_maps(snoop) ? fail("could not map the BPF tables", errno) : 0;
}

int ml_snoop_load(struct ml_snoop *snoop, const struct ml_snoop_config *config, ml_u32 only, ring_buffer_sample_fn on_call,
		  ring_buffer_sample_fn on_stack, void *context)
{
	*snoop = (struct ml_snoop){ .n_functions = config->n_functions, .only = only, .n_cpus = libbpf_num_possible_cpus() };
	if (config->session.follow)
		ml_tracefs_mount();
	ml_libbpf_begin(FILES_MAX);
	snoop->has_cookies =
		!config->without_cookies && libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_get_attach_cookie, NULL) > 0;
	if (load(snoop, config))
		return -1;
	if (fill_maps(snoop, config))
		return fail("could not fill the BPF tables", errno);
	snoop->calls = ring_buffer__new(map_fd(snoop, "calls"), on_call, context, NULL);
	if (config->session.stack_bytes)
		snoop->stacks = ring_buffer__new(map_fd(snoop, "stacks"), on_stack, context, NULL);
	return snoop->calls && (snoop->stacks || !config->session.stack_bytes) ? 0 :
										 fail("could not map the ring of calls", errno);
}

ml_u64 ml_snoop_counter(const struct ml_snoop *snoop, ml_u32 which)
{
	return ml_libbpf_counter(map_fd(snoop, "counters"), snoop->n_cpus, which);
}
