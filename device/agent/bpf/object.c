// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/object.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/libbpf.h"
#include "agent/bpf/programs.h"
#include "agent/process/resource_limits.h"
#include "agent/probes/tracefs.h"

extern const unsigned char ml_bpf_memleak_start[], ml_bpf_memleak_end[];
extern const unsigned char ml_bpf_memleak_old_start[], ml_bpf_memleak_old_end[];

int ml_bpf_fail(const char *what, int error)
{
	return ml_libbpf_fail(what, error,
			      error == EPERM || error == EACCES ?
				      "run as root, or use --tracer preload with a command" :
				      "see memleak-android doctor, or use --tracer preload with a command");
}

static void size_maps(struct bpf_object *object, const struct ml_config *config, bool is_old)
{
	struct bpf_map *evidence = bpf_object__find_map_by_name(object, "evidence");
	struct bpf_map *overflow = bpf_object__find_map_by_name(object, "overflow");

	if (is_old) { /* the whole live table */
		bpf_map__set_max_entries(overflow, (ml_u32)config->max_live);
		return;
	}
	if (bpf_map__max_entries(overflow) > config->max_live / 8 + 1)
		bpf_map__set_max_entries(overflow, (ml_u32)(config->max_live / 8 + 1));
	bpf_map__set_max_entries(evidence, (ml_u32)config->ring_bytes);
}

static int find_maps(struct ml_bpf *bpf)
{
	bpf->overflow_fd = bpf_object__find_map_fd_by_name(bpf->object, "overflow");
	bpf->levels_fd = bpf_object__find_map_fd_by_name(bpf->object, "levels");
	bpf->processes_fd = bpf_object__find_map_fd_by_name(bpf->object, "processes");
	bpf->stacks_fd = bpf_object__find_map_fd_by_name(bpf->object, "stacks");
	bpf->counters_fd = bpf_object__find_map_fd_by_name(bpf->object, "counters");
	bpf->n_cpus = libbpf_num_possible_cpus();
	bpf->keys = ml_libbpf_map(bpf->object, "keys", sizeof(struct ml_bpf_key) * ML_BPF_KEY_SLOTS);
	bpf->code = ml_libbpf_map(bpf->object, "code", (sizeof(struct ml_bpf_code) + 4095) & ~4095ul);
	if (!bpf->keys || !bpf->code)
		return ml_bpf_fail("could not map the BPF tables", errno);
	bpf->spans_fd = bpf_object__find_map_fd_by_name(bpf->object, "spans");
	if (bpf->is_old)
		return 0;
	bpf->rules = ml_libbpf_map(bpf->object, "frame_rules", sizeof(struct ml_frame_rule) * ML_FRAME_RULES);
	if (!bpf->rules)
		return ml_bpf_fail("could not map the frame rules", errno);
	bpf->peak = ml_libbpf_map(bpf->object, "peak", 4096);
	bpf->peak_words = ml_libbpf_map(bpf->object, "peak_words", sizeof(ml_u64) * ML_BPF_KEY_SLOTS);
	if (!bpf->peak || !bpf->peak_words)
		return ml_bpf_fail("could not map the high-water mark", errno);
	bpf->peak->generation = 1;
	return 0;
}

/* Reads and loads one of the two objects; returns 0 or an errno. */
static int load_object(struct ml_bpf *bpf, const struct ml_config *config)
{
	const unsigned char *start = bpf->is_old ? ml_bpf_memleak_old_start : ml_bpf_memleak_start;
	const unsigned char *end = bpf->is_old ? ml_bpf_memleak_old_end : ml_bpf_memleak_end;
	struct bpf_program *program;
	int error;

	bpf->object = bpf_object__open_mem(start, (size_t)(end - start), NULL);
	if (!bpf->object)
		return errno;
	bpf_object__for_each_program(program, bpf->object)
	{
		bpf_program__set_autoload(program, ml_bpf_is_wanted(config, bpf_program__name(program), bpf->is_old));
		if (bpf->has_multi && !bpf->is_old && bpf_program__type(program) == BPF_PROG_TYPE_KPROBE)
			bpf_program__set_expected_attach_type(program, (enum bpf_attach_type)BPF_TRACE_UPROBE_MULTI);
	}
	size_maps(bpf->object, config, bpf->is_old);
	error = ml_bpf_set_options(bpf->object, config, bpf->finds_mappings, bpf->alternate_stack);
	if (!error)
		error = bpf_object__load(bpf->object);
	if (!error)
		return 0;
	bpf_object__close(bpf->object);
	bpf->object = NULL;
	return -error;
}

static int open_output(struct ml_bpf *bpf, const struct ml_config *config, ring_buffer_sample_fn on_record, void *context)
{
	int evidence = bpf_object__find_map_fd_by_name(bpf->object, "evidence");

	if (bpf->is_old)
		bpf->perf_path = ml_perf_path_open(evidence, bpf_object__find_map_fd_by_name(bpf->object, "events"),
						   config->stack_bytes, on_record, context);
	else
		bpf->ring = ring_buffer__new(evidence, on_record, context, NULL);
	return bpf->ring || bpf->perf_path ? 0 : ml_bpf_fail("could not map the evidence ring", errno);
}

/* With less and less of what a kernel may not have. */
static int load_current(struct ml_bpf *bpf, const struct ml_config *config)
{
	ml_u32 alternate_stack = ml_bpf_alternate_stack();
	int error = 0;

	for (int i = 0; i < 4; i++) {
		if (i % 2 && !alternate_stack)
			continue;
		bpf->finds_mappings = i < 2;
		bpf->alternate_stack = i % 2 ? 0 : alternate_stack;
		error = load_object(bpf, config);
		if (!error || error == EPERM)
			break;
	}
	return error;
}

int ml_bpf_load(struct ml_bpf *bpf, const struct ml_config *config, ring_buffer_sample_fn on_record, void *context)
{
	int error;

	*bpf = (struct ml_bpf){ .buckets_shift = ml_bpf_buckets_shift(config->max_live),
				.is_old = config->perf_event_path,
				.is_system_wide = config->whole_machine,
				.sees_mappings = ml_tracefs_sees_mappings() };
	ml_libbpf_begin(ML_DESCRIPTORS_OF_TRACER);
	bpf->has_multi =
		!bpf->is_old && !config->without_multi &&
		ml_uprobe_multi_sees(config->lends_memory && ml_bpf_misses_borrowers(config) ? ML_CALLS_IN_LENT_MEMORY :
											       ML_CALLS_OF_THREADS);
	error = bpf->is_old ? load_object(bpf, config) : load_current(bpf, config);
	if (config->n_pairs && (bpf->is_old || (error && error != EPERM))) {
		return ml_bpf_fail("could not load the BPF programs for --pairs, which need Linux 5.15",
				   error ? error : ENOTSUP);
	}
	if (config->whole_machine && (bpf->is_old || (error && error != EPERM)))
		return ml_bpf_fail("could not load the BPF programs for every process, which need Linux 5.15",
				   error ? error : ENOTSUP);
	if (error && !bpf->is_old && error != EPERM) {
		ml_blocks_log("could not load the BPF object for newer kernels (%s); trying the one for older kernels",
			      strerror(error));
		bpf->is_old = true;
		bpf->has_multi = false;
		error = load_object(bpf, config);
	}
	if (error)
		return ml_bpf_fail("could not load the BPF programs", error);
	if (find_maps(bpf))
		return -1;
	return open_output(bpf, config, on_record, context);
}

int ml_bpf_drain(struct ml_bpf *bpf)
{
	ml_u64 sent;
	int result;

	if (bpf->is_old)
		return ml_perf_path_drain(bpf->perf_path);
	sent = __atomic_load_n(&bpf->code->verifying_sent, __ATOMIC_RELAXED);
	result = ring_buffer__consume(bpf->ring); /* until it is empty */
	__atomic_store_n(&bpf->code->verifying_taken, sent, __ATOMIC_RELAXED);
	__atomic_fetch_add(&bpf->code->drains, 1, __ATOMIC_RELAXED);
	return result;
}

void ml_bpf_wait(struct ml_bpf *bpf, int input, int timeout_ms)
{
	struct pollfd files[] = { { .fd = input, .events = POLLIN },
				  { .fd = bpf->ring ? ring_buffer__epoll_fd(bpf->ring) : -1, .events = POLLIN } };

	poll(files, 2, timeout_ms);
}

ml_u64 ml_bpf_counter(const struct ml_bpf *bpf, ml_u32 which)
{
	return ml_libbpf_counter(bpf->counters_fd, bpf->n_cpus, which);
}

struct ml_bpf_key *ml_bpf_find_key(const struct ml_bpf *bpf, ml_u64 key)
{
	for (ml_u32 i = 0; i < ML_BPF_KEY_PROBES; i++) {
		struct ml_bpf_key *entry = &bpf->keys[((ml_u32)(key >> 20) + i) & (ML_BPF_KEY_SLOTS - 1)];

		if (__atomic_load_n(&entry->key, __ATOMIC_RELAXED) == key)
			return entry;
	}
	return NULL;
}

ml_u64 ml_bpf_live_objects(void *context, ml_u64 key, ml_u64 *allocated)
{
	const struct ml_bpf_key *entry = ml_bpf_find_key(context, key);

	*allocated = entry ? __atomic_load_n(&entry->alloc_objects, __ATOMIC_SEQ_CST) : 0;
	if (!entry) /* with --all, keys of ended processes are removed */
		return !((struct ml_bpf *)context)->is_system_wide;
	return *allocated - __atomic_load_n(&entry->free_objects, __ATOMIC_SEQ_CST);
}

void ml_bpf_ask_again(void *context, ml_u64 key)
{
	struct ml_bpf_key *entry = ml_bpf_find_key(context, key);

	if (entry)
		__atomic_store_n(&entry->next_due, 0, __ATOMIC_SEQ_CST);
}
