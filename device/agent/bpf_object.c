// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "bpf_object.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "blocks.h"
#include "bpf_complaint.h"
#include "bpf_programs.h"
#include "live_levels.h"
#include "resource_limits.h"
#include "tracefs.h"

extern const unsigned char ml_bpf_memleak_start[], ml_bpf_memleak_end[];
extern const unsigned char ml_bpf_memleak_old_start[], ml_bpf_memleak_old_end[];

static int fail(const char *what, int error)
{
	return ml_bpf_refuse(what, error,
			     error == EPERM || error == EACCES ? "run as root, or use --tracer preload with a command" :
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

static void *map_array(const struct bpf_object *object, const char *name, size_t bytes)
{
	int fd = bpf_object__find_map_fd_by_name(object, name);
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static int find_maps(struct ml_bpf *bpf)
{
	bpf->overflow_fd = bpf_object__find_map_fd_by_name(bpf->object, "overflow");
	bpf->levels_fd = bpf_object__find_map_fd_by_name(bpf->object, "levels");
	bpf->processes_fd = bpf_object__find_map_fd_by_name(bpf->object, "processes");
	bpf->stack_ends_fd = bpf_object__find_map_fd_by_name(bpf->object, "stack_ends");
	bpf->counters_fd = bpf_object__find_map_fd_by_name(bpf->object, "counters");
	bpf->n_cpus = libbpf_num_possible_cpus();
	bpf->keys = map_array(bpf->object, "keys", sizeof(struct ml_bpf_key) * ML_BPF_KEY_SLOTS);
	bpf->code = map_array(bpf->object, "code", (sizeof(struct ml_bpf_code) + 4095) & ~4095ul);
	if (!bpf->keys || !bpf->code)
		return fail("could not map the BPF tables", errno);
	bpf->spans_fd = bpf_object__find_map_fd_by_name(bpf->object, "spans");
	if (bpf->is_old)
		return 0;
	bpf->rules = map_array(bpf->object, "frame_rules", sizeof(struct ml_frame_rule) * ML_FRAME_RULES);
	if (!bpf->rules)
		return fail("could not map the frame rules", errno);
	bpf->peak = map_array(bpf->object, "peak", 4096);
	bpf->peak_words = map_array(bpf->object, "peak_words", sizeof(ml_u64) * ML_BPF_KEY_SLOTS);
	if (!bpf->peak || !bpf->peak_words)
		return fail("could not map the high-water mark", errno);
	bpf->peak->generation = 1;
	return ml_bpf_add_level(bpf) ? fail("could not make the live table", errno) : 0;
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
		bpf_program__set_autoload(program, ml_bpf_is_wanted(config, bpf_program__name(program), bpf->is_old));
	size_maps(bpf->object, config, bpf->is_old);
	error = ml_bpf_set_options(bpf->object, config);
	if (!error)
		error = bpf_object__load(bpf->object);
	if (!error)
		return 0;
	bpf_object__close(bpf->object);
	bpf->object = NULL;
	return -error;
}

static int open_output(struct ml_bpf *bpf, const struct ml_config *config, ring_buffer_sample_fn on_record,
		       void *context)
{
	int evidence = bpf_object__find_map_fd_by_name(bpf->object, "evidence");

	if (bpf->is_old)
		bpf->perf_path = ml_perf_path_open(evidence, bpf_object__find_map_fd_by_name(bpf->object, "events"),
						   config->stack_bytes, on_record, context);
	else
		bpf->ring = ring_buffer__new(evidence, on_record, context, NULL);
	return bpf->ring || bpf->perf_path ? 0 : fail("could not map the evidence ring", errno);
}

int ml_bpf_load(struct ml_bpf *bpf, const struct ml_config *config, ring_buffer_sample_fn on_record, void *context)
{
	int error;

	*bpf = (struct ml_bpf){
		.buckets_shift = ml_bpf_buckets_shift(config->max_live),
		.is_old = config->perf_event_path,
		.evidence_after_ns = config->evidence_after_ns,
		.is_everybody = config->whole_machine,
		.sees_mappings = ml_tracefs_sees_mappings(),
	};
	ml_bpf_keep_complaints();
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	ml_limits_raise_memlock();
	ml_limits_raise_descriptors(ML_DESCRIPTORS_OF_TRACER);
	error = load_object(bpf, config);
	if (config->n_pairs && (bpf->is_old || (error && error != EPERM))) {
		return fail("could not load the BPF programs for --pairs, which need Linux 5.15", error ? error : ENOTSUP);
	}
	if (config->whole_machine && (bpf->is_old || (error && error != EPERM)))
		return fail("could not load the BPF programs for every process, which need Linux 5.15", error ? error : ENOTSUP);
	if (error && !bpf->is_old && error != EPERM) {
		ml_blocks_log("the BPF object for newer kernels cannot be loaded (%s): the one for older ones is tried",
			      strerror(error));
		bpf->is_old = true;
		error = load_object(bpf, config);
	}
	if (error)
		return fail("could not load the BPF programs", error);
	if (bpf->is_old && config->extend_stacks)
		ml_blocks_log("--extend-stacks does nothing on this kernel: stacks end where their slices do, at %u bytes", config->stack_bytes);
	if (bpf->is_old && config->evidence_after_ns)
		ml_blocks_log("stacks are sent of blocks of any age: how old those of a stack are is not known on this kernel");
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
	struct pollfd files[] = {
		{ .fd = input, .events = POLLIN },
		{ .fd = bpf->ring ? ring_buffer__epoll_fd(bpf->ring) : -1, .events = POLLIN },
	};

	poll(files, 2, timeout_ms);
}

static int keep_link(struct ml_bpf *bpf, struct bpf_link *link)
{
	if (!link)
		return -1;
	bpf->links[bpf->n_links++] = link;
	return 0;
}

/* Only a zombie is left of a process that ended, or nothing. What cannot be looked at is no end. */
static bool has_ended(int pid)
{
	char path[64], state = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return errno == ENOENT;
	if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(file);
	return state == 'Z' || state == 'X';
}

static int attach_probe(struct ml_bpf *bpf, const struct ml_config *config, const struct ml_probe *probe, bool at_return,
			int pid)
{
	LIBBPF_OPTS(bpf_uprobe_opts, how, .retprobe = at_return);
	ml_u64 offset = at_return ? probe->return_offset : probe->entry_offset;
	char name[64];
	struct bpf_program *program;
	int error;

	ml_bpf_entry_program(config, probe, bpf->is_old, name, sizeof(name));
	if (!bpf->is_old) /* without one, kernels that know none can place the probe */
		how.bpf_cookie = probe->function | (ml_u64)ml_bpf_file(config, probe) << ML_BPF_FILE_SHIFT;
	if (at_return)
		snprintf(name, sizeof(name), "%s", ml_bpf_return_program(config, probe));
	if (config->empty_probes)
		strcpy(name, at_return ? "empty_return" : "empty_entry");
	program = bpf_object__find_program_by_name(bpf->object, name);
	if (!program) {
		ml_blocks_error(ML_REASON_USAGE_ERROR, "no BPF program for %s", name);
		return -1;
	}
	if (!keep_link(bpf, bpf_program__attach_uprobe_opts(program, pid, probe->path, offset, &how)))
		return 0;
	error = errno;
	if (pid > 0 && has_ended(pid)) {
		ml_blocks_error(ML_REASON_TARGET_ERROR, "pid %d ended while it was being attached to", pid);
		return -1;
	}
	snprintf(ml_bpf_complaint, sizeof(ml_bpf_complaint), "%s+0x%llx in %s", name, (unsigned long long)offset, probe->path);
	return fail("could not place a probe", error);
}

static int attach_one(struct ml_bpf *bpf, const char *name, const char *category, const char *event)
{
	struct bpf_program *program = bpf_object__find_program_by_name(bpf->object, name);
	struct bpf_link *link;

	if (!program || !bpf_program__autoload(program))
		return 0;
	link = category ? bpf_program__attach_tracepoint(program, category, event) :
			  bpf_program__attach_raw_tracepoint(program, event);
	if (!keep_link(bpf, link))
		return 0;
	ml_blocks_log("could not attach to %s: %s", event, strerror(errno));
	return -1;
}

/*
 * Probes act from the moment each is placed: first what only gives blocks back, then what moves them, last what
 * makes them. The other way round a block could be counted whose free is not seen yet, and be held for ever.
 */
enum { TURN_RELEASE, TURN_MOVE, TURN_MAKE, TURNS };

static int turn_of(const struct ml_config *config, const struct ml_probe *probe)
{
	if (config->rules[probe->function].old || probe->function == ML_FN_MREMAP)
		return TURN_MOVE;
	return probe->has_return && probe->function != ML_FN_MUNMAP ? TURN_MAKE : TURN_RELEASE;
}

int ml_bpf_attach(struct ml_bpf *bpf, const struct ml_config *config, int pid)
{
	*ml_bpf_complaint = '\0';
	attach_one(bpf, "process_exit", NULL, "sched_process_exit");
	attach_one(bpf, "process_exec", NULL, "sched_process_exec");
	if (attach_one(bpf, "code_mapped", "syscalls", "sys_enter_mmap") ||
	    attach_one(bpf, "code_unmapped", "syscalls", "sys_enter_munmap") ||
	    attach_one(bpf, "exec_begins", "syscalls", "sys_enter_execve") ||
	    attach_one(bpf, "execat_begins", "syscalls", "sys_enter_execveat"))
		return fail("could not follow mappings", errno);
	if ((config->follow || config->whole_machine) && attach_one(bpf, "process_fork", "task", "task_newtask"))
		return fail("could not follow forks", errno);
	for (int i = 0; i < TURNS * config->n_probes; i++) {
		const struct ml_probe *probe = &config->probes[i % config->n_probes];

		/* The return first: an entry without its return would be counted as missed. */
		if (turn_of(config, probe) == i / config->n_probes &&
		    ((probe->has_return && attach_probe(bpf, config, probe, true, pid)) ||
		     attach_probe(bpf, config, probe, false, pid)))
			return -1;
	}
	return 0;
}

static void *destroy_link(void *link)
{
	bpf_link__destroy(link);
	return NULL;
}

/* The kernel waits for a grace period at each link, some 100 ms: all at once, and not one after another. */
void ml_bpf_detach(struct ml_bpf *bpf)
{
	pthread_t threads[ML_MAX_LINKS];
	bool is_started[ML_MAX_LINKS];
	int n = bpf->n_links;

	if (bpf->code)
		__atomic_store_n(&bpf->code->is_over, 1, __ATOMIC_SEQ_CST);
	bpf->n_links = 0;
	for (int i = 0; i < n; i++) {
		is_started[i] = !pthread_create(&threads[i], NULL, destroy_link, bpf->links[i]);
		if (!is_started[i])
			destroy_link(bpf->links[i]);
	}
	for (int i = 0; i < n; i++)
		if (is_started[i])
			pthread_join(threads[i], NULL);
}

void ml_bpf_destroy(struct ml_bpf *bpf)
{
	ml_bpf_detach(bpf);
	ring_buffer__free(bpf->ring);
	ml_perf_path_close(bpf->perf_path);
	bpf_object__close(bpf->object);
	free(bpf->oldest_ns);
}

ml_u64 ml_bpf_counter(const struct ml_bpf *bpf, ml_u32 which)
{
	ml_u64 *rows = calloc((size_t)bpf->n_cpus, sizeof(*rows));
	ml_u64 sum = 0;

	if (rows && !bpf_map_lookup_elem(bpf->counters_fd, &which, rows))
		for (int i = 0; i < bpf->n_cpus; i++)
			sum += rows[i];
	free(rows);
	return sum;
}
