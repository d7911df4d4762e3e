// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "bpf_object.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "blocks.h"
#include "code_mask.h"
#include "function_names.h"
#include "live_levels.h"
#include "tracefs.h"

/* One program serves the returns of all allocators, another those of the region ledger. */
#define RETURN_PROGRAM "allocation_return"
#define REGION_RETURN_PROGRAM "region_return"

extern const unsigned char ml_bpf_memleak_start[], ml_bpf_memleak_end[];
extern const unsigned char ml_bpf_memleak_old_start[], ml_bpf_memleak_old_end[];

/* libbpf's last complaint: the detail behind a load that failed. */
static char libbpf_detail[512];

static int keep_warning(enum libbpf_print_level level, const char *format, va_list arguments)
{
	if (getenv("MEMLEAKD_VERBOSE")) { /* the verifier's whole log, for developers */
		va_list again;

		va_copy(again, arguments);
		vfprintf(stderr, format, again);
		va_end(again);
	}
	if (level == LIBBPF_WARN) {
		vsnprintf(libbpf_detail, sizeof(libbpf_detail), format, arguments);
		libbpf_detail[strcspn(libbpf_detail, "\n")] = '\0';
	}
	return 0;
}

static int fail(const char *what, int error)
{
	const char *way_out = error == EPERM || error == EACCES ?
				      "run as root, or use --tracer preload with a command" :
				      "see memleak-android doctor, or use --tracer preload with a command";

	ml_blocks_error(ML_REASON_TRACER_ERROR, "%s: %s%s%s%s (%s)", what, strerror(error), *libbpf_detail ? " [" : "",
			libbpf_detail, *libbpf_detail ? "]" : "", way_out);
	return -1;
}

static bool is_wanted(const struct ml_config *config, const char *program)
{
	if (!strncmp(program, "empty_", strlen("empty_")))
		return config->empty_probes;
	if (!strcmp(program, "process_fork"))
		return config->follow;
	if (!strcmp(program, REGION_RETURN_PROGRAM))
		return config->mmap;
	if (!strncmp(program, "code_", strlen("code_")) || !strncmp(program, "exec", strlen("exec")))
		return ml_tracefs_sees_mappings();
	if (!strcmp(program, "process_exit") || !strcmp(program, "process_exec") || !strcmp(program, RETURN_PROGRAM))
		return true;
	for (int i = 0; i < config->n_probes; i++) {
		const char *name = ml_function_names[config->probes[i].function];
		size_t length = name ? strlen(name) : 0;

		if (name && !strncmp(program, name, length) && !strcmp(program + length, "_entry"))
			return true;
	}
	return false;
}

/* Where a field stands in an event, 0 when that is not known. */
static ml_u32 event_field(const char *event, const char *field)
{
	int offset = ml_tracefs_field(event, field);

	return offset > 0 ? (ml_u32)offset : 0;
}

static int set_options(struct bpf_object *object, const struct ml_config *config)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, ML_BPF_OPTIONS_SECTION);
	struct ml_bpf_options options = {
		.follow = config->follow,
		.stack_bytes = config->no_evidence > 1 ? 0 : config->stack_bytes,
		.rules_only = config->no_evidence == 1,
		.every_stack = config->every_stack,
		.events = config->events,
		.buckets_shift = ml_bpf_buckets_shift(config->max_live),
		.min_size = config->min_size,
		.max_size = config->max_size,
		.code_mask = ml_code_mask(),
		.sees_mappings = ml_tracefs_sees_mappings(),
		.fork_pid = event_field("task/task_newtask", "pid"),
		.fork_flags = event_field("task/task_newtask", "clone_flags"),
		.munmap_addr = event_field("syscalls/sys_enter_munmap", "addr"),
		.munmap_len = event_field("syscalls/sys_enter_munmap", "len"),
		.mmap_addr = event_field("syscalls/sys_enter_mmap", "addr"),
		.mmap_len = event_field("syscalls/sys_enter_mmap", "len"),
		.mmap_prot = event_field("syscalls/sys_enter_mmap", "prot"),
		.mmap_flags = event_field("syscalls/sys_enter_mmap", "flags"),
	};

	for (int i = 0; i < config->n_probes; i++) {
		const struct ml_probe *probe = &config->probes[i];

		options.functions[probe->function] = (struct ml_bpf_function){
			.entry_offset = probe->entry_offset,
			.text_low = probe->text_low,
			.text_high = probe->text_high,
		};
	}
	return map ? bpf_map__set_initial_value(map, &options, sizeof(options)) : -ENOENT;
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
		bpf_program__set_autoload(program, is_wanted(config, bpf_program__name(program)));
	size_maps(bpf->object, config, bpf->is_old);
	error = set_options(bpf->object, config);
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
	/* Before 5.11 maps count against RLIMIT_MEMLOCK; where they do not, this changes nothing. */
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	int error;

	*bpf = (struct ml_bpf){
		.buckets_shift = ml_bpf_buckets_shift(config->max_live),
		.is_old = config->perf_event_path,
		.sees_mappings = ml_tracefs_sees_mappings(),
	};
	libbpf_set_print(keep_warning);
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	error = load_object(bpf, config);
	if (error && !bpf->is_old && error != EPERM) {
		ml_blocks_log("the BPF object for newer kernels cannot be loaded (%s): the one for older ones is tried",
			      strerror(error));
		bpf->is_old = true;
		error = load_object(bpf, config);
	}
	if (error)
		return fail("could not load the BPF programs", error);
	if (find_maps(bpf))
		return -1;
	return open_output(bpf, config, on_record, context);
}

int ml_bpf_drain(struct ml_bpf *bpf)
{
	return bpf->is_old ? ml_perf_path_drain(bpf->perf_path) : ring_buffer__consume(bpf->ring);
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

/* Only a zombie is left of a process that ended, or nothing. */
static bool has_ended(int pid)
{
	char path[64], state = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return true;
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

	snprintf(name, sizeof(name), "%s_entry", ml_function_names[probe->function]);
	if (at_return)
		strcpy(name, probe->function < ML_FN_MMAP ? RETURN_PROGRAM : REGION_RETURN_PROGRAM);
	if (config->empty_probes)
		strcpy(name, at_return ? "empty_return" : "empty_entry");
	program = bpf_object__find_program_by_name(bpf->object, name);
	if (!program) {
		ml_blocks_error(ML_REASON_USAGE_ERROR, "no BPF program for %s", name);
		return -1;
	}
	if (!keep_link(bpf, bpf_program__attach_uprobe_opts(program, pid, probe->path, offset, &how)))
		return 0;
	if (pid > 0 && has_ended(pid)) {
		ml_blocks_error(ML_REASON_TARGET_ERROR, "pid %d ended while it was being attached to", pid);
		return -1;
	}
	snprintf(libbpf_detail, sizeof(libbpf_detail), "%s+0x%llx in %s", name, (unsigned long long)offset, probe->path);
	return fail("could not place a probe", errno);
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

int ml_bpf_attach(struct ml_bpf *bpf, const struct ml_config *config, int pid)
{
	*libbpf_detail = '\0';
	attach_one(bpf, "process_exit", NULL, "sched_process_exit");
	attach_one(bpf, "process_exec", NULL, "sched_process_exec");
	if (attach_one(bpf, "code_mapped", "syscalls", "sys_enter_mmap") ||
	    attach_one(bpf, "code_unmapped", "syscalls", "sys_enter_munmap") ||
	    attach_one(bpf, "exec_begins", "syscalls", "sys_enter_execve") ||
	    attach_one(bpf, "execat_begins", "syscalls", "sys_enter_execveat"))
		return fail("could not follow mappings", errno);
	if (config->follow && attach_one(bpf, "process_fork", "task", "task_newtask"))
		return fail("could not follow forks", errno);
	for (int i = 0; i < config->n_probes; i++) {
		const struct ml_probe *probe = &config->probes[i];

		/* The return first: an entry without its return would be counted as missed. */
		if ((probe->has_return && attach_probe(bpf, config, probe, true, pid)) ||
		    attach_probe(bpf, config, probe, false, pid))
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
