// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/object.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/libbpf.h"
#include "agent/process/signature_mask.h"
#include "agent/probes/tracefs.h"
#include "agent/process/resource_limits.h"

#define TREE_PROCESSES 65536u /* many of them may have ended since the last check */

extern const unsigned char ml_bpf_kernel_start[], ml_bpf_kernel_end[];

/* mm/slub.c: since v4.6, and since v6.18. Where one is missing, or cannot be probed, frees are missed and counted. */
static const struct {
	const char *program, *function;
} bulk[ML_KERNEL_BULK] = { { "slab_free_bulk", "kmem_cache_free_bulk" }, { "slab_free_later", "__kfree_rcu_sheaf" } };

static int fail(const char *what, int error)
{
	const char *way_out = "it needs Linux 5.12; see memleak-android doctor";

	if (error == EPERM || error == EACCES)
		way_out = geteuid() ? "run as root" : "root alone is not enough here: see dmesg for what SELinux denies";
	return ml_libbpf_fail(what, error, way_out);
}

/* Sets the type of each program, before it is loaded. -1: the kernel lacks a required event. */
static int choose_programs(struct ml_kernel *kernel, const struct ml_config *config)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, kernel->object) bpf_program__set_autoload(program, false);
	for (int i = 0; i < ML_KERNEL_BULK; i++)
		bpf_program__set_autoload(bpf_object__find_program_by_name(kernel->object, bulk[i].program),
					  config->kernel_groups >> ML_KERNEL_OF_SLAB & 1);
	for (int i = 0; i < ML_KERNEL_EVENTS; i++) {
		const struct ml_kernel_source *source = &ml_kernel_sources[i];

		if (!(config->kernel_groups >> source->group & 1))
			continue;
		if (!kernel->layout.has[i]) {
			if (source->is_optional)
				continue;
			return ml_blocks_error(ML_REASON_TRACER_ERROR, "this kernel has no event %s:%s with known fields (%s)",
					       source->category, source->event, "leave this kind of memory out of --kernel");
		}
		program = bpf_object__find_program_by_name(kernel->object, source->program);
		bpf_program__set_autoload(program, true);
		bpf_program__set_type(program, kernel->layout.is_raw ? BPF_PROG_TYPE_RAW_TRACEPOINT : BPF_PROG_TYPE_TRACEPOINT);
		kernel->programs[i] = program;
	}
	return 0;
}

/* mm/slub.c: functions that allocate the pages of blocks, before v6.9 and since. Static ones may have been inlined. */
static const char *const inner[ML_KERNEL_INNER] = { "allocate_slab", "new_slab", "__kmalloc_large_node",
						    "___kmalloc_large_node" };

/* Counts the command and the processes that it starts: session.c. 0, or -1 after an ERROR block. */
static int prepare_tree(struct bpf_object *object, struct ml_kernel_options *options)
{
	int pid = ml_tracefs_field("task/task_newtask", "pid"), flags = ml_tracefs_field("task/task_newtask", "clone_flags");

	if (pid < 0 || flags < 0)
		return ml_blocks_error(ML_REASON_TRACER_ERROR,
				       "could not follow forks, which --kernel with a command needs: no fields of task_newtask "
				       "(mount tracefs, or name a process by --pid)");
	options->is_tree = 1;
	options->fork_pid = (ml_u32)pid;
	options->fork_flags = (ml_u32)flags;
	bpf_program__set_autoload(bpf_object__find_program_by_name(object, "process_fork"), true);
	bpf_map__set_max_entries(bpf_object__find_map_by_name(object, "tree"), TREE_PROCESSES);
	return 0;
}

/* 0, or -1 after an ERROR block. */
static int set_options(const struct ml_kernel *kernel, const struct ml_config *config, const struct ml_kernel_symbols *symbols)
{
	struct bpf_map *map = bpf_object__find_map_by_name(kernel->object, ML_KERNEL_OPTIONS_SECTION);
	struct ml_kernel_options options = {
		.pid = (ml_u32)config->pid,
		.agent = (ml_u32)getpid(),
		.stack_bytes = kernel->has_user ? config->stack_bytes : 0,
		.page_bytes = (ml_u32)sysconf(_SC_PAGESIZE),
		/* Of the whole machine most keys are of short-lived processes, and hold one block until its end. */
		.first_due = config->whole_machine ? 2 : 1,
		.cache_size = kernel->layout.cache_size,
		.percpu_copies = kernel->layout.has_copies ? 1 : (ml_u32)kernel->n_cpus,
		.min_size = config->min_size,
		.max_size = config->max_size,
		.signature_mask = ml_signature_mask(),
	};

	for (int i = 0; i < ML_KERNEL_INNER && config->kernel_groups >> ML_KERNEL_OF_SLAB & 1; i++)
		ml_kernel_symbols_range(symbols, inner[i], &options.inner[i][0], &options.inner[i][1]);
	memcpy(options.events, kernel->layout.events, sizeof(options.events));
	if (config->n_arguments && prepare_tree(kernel->object, &options))
		return -1;
	if (map && !bpf_map__set_initial_value(map, &options, sizeof(options)))
		return 0;
	return fail("could not set the options of the BPF programs", errno);
}

static int load_object(struct ml_kernel *kernel, const struct ml_config *config, const struct ml_kernel_symbols *symbols)
{
	int error;

	kernel->object = bpf_object__open_mem(ml_bpf_kernel_start, (size_t)(ml_bpf_kernel_end - ml_bpf_kernel_start), NULL);
	if (!kernel->object)
		return fail("could not read the BPF programs", errno);
	if (choose_programs(kernel, config))
		return -1;
	kernel->max_stacks = config->max_stacks ? config->max_stacks : ML_KERNEL_STACKS;
	bpf_map__set_max_entries(bpf_object__find_map_by_name(kernel->object, "stacks"), kernel->max_stacks);
	bpf_map__set_max_entries(bpf_object__find_map_by_name(kernel->object, "live"), (ml_u32)config->max_live);
	bpf_map__set_max_entries(bpf_object__find_map_by_name(kernel->object, "evidence"), (ml_u32)config->ring_bytes);
	if (set_options(kernel, config, symbols))
		return -1;
	error = bpf_object__load(kernel->object);
	return error ? fail("could not load the BPF programs for the kernel's memory", -error) : 0;
}

static int open_maps(struct ml_kernel *kernel, ring_buffer_sample_fn on_record, void *context)
{
	kernel->live_fd = bpf_object__find_map_fd_by_name(kernel->object, "live");
	kernel->stacks_fd = bpf_object__find_map_fd_by_name(kernel->object, "stacks");
	kernel->counters_fd = bpf_object__find_map_fd_by_name(kernel->object, "counters");
	kernel->tree_fd = bpf_object__find_map_fd_by_name(kernel->object, "tree");
	kernel->keys = ml_libbpf_map(kernel->object, "keys", sizeof(*kernel->keys) * ML_KERNEL_KEY_SLOTS);
	kernel->ring = ring_buffer__new(bpf_object__find_map_fd_by_name(kernel->object, "evidence"), on_record, context, NULL);
	return kernel->keys && kernel->ring ? 0 : fail("could not map the BPF tables", errno);
}

int ml_kernel_load(struct ml_kernel *kernel, const struct ml_config *config, const struct ml_kernel_symbols *symbols,
		   ring_buffer_sample_fn on_record, void *context)
{
	enum bpf_prog_type type;

	*kernel = (struct ml_kernel){ .n_cpus = libbpf_num_possible_cpus() };
	ml_libbpf_begin(ML_DESCRIPTORS_OF_TRACER);
	if (ml_kernel_layout_find(&kernel->layout, config->without_btf))
		return ml_blocks_error(
			ML_REASON_TRACER_ERROR,
			"neither BTF nor tracefs describes the events of the kernel's allocators (mount tracefs, or use a kernel "
			"with CONFIG_DEBUG_INFO_BTF)");
	type = kernel->layout.is_raw ? BPF_PROG_TYPE_RAW_TRACEPOINT : BPF_PROG_TYPE_TRACEPOINT;
	kernel->has_user = libbpf_probe_bpf_helper(type, BPF_FUNC_task_pt_regs, NULL) > 0;
	if (!kernel->has_user)
		ml_blocks_log("stacks end at the kernel's entry: this kernel has no bpf_task_pt_regs(), which Linux 5.15 has");
	return load_object(kernel, config, symbols) || open_maps(kernel, on_record, context) ? -1 : 0;
}

static int attach_one(struct ml_kernel *kernel, int i)
{
	const struct ml_kernel_source *source = &ml_kernel_sources[i];
	struct bpf_link *link;

	link = kernel->layout.is_raw ? bpf_program__attach_raw_tracepoint(kernel->programs[i], source->event) :
				       bpf_program__attach_tracepoint(kernel->programs[i], source->category, source->event);
	if (!link)
		return fail("could not attach to an event of the kernel's allocators", errno);
	kernel->links[kernel->n_links++] = link;
	return 0;
}

int ml_kernel_attach(struct ml_kernel *kernel, const struct ml_kernel_symbols *symbols)
{
	struct bpf_link *link;
	ml_u64 start, end;

	for (int i = 0; i < ML_KERNEL_BULK; i++) {
		struct bpf_program *program = bpf_object__find_program_by_name(kernel->object, bulk[i].program);

		if (!bpf_program__autoload(program) || !ml_kernel_symbols_range(symbols, bulk[i].function, &start, &end))
			continue;
		link = bpf_program__attach_kprobe(program, false, bulk[i].function);
		if (link)
			kernel->links[kernel->n_links++] = link;
		else
			ml_blocks_gap(
				ML_GAP_FUNCTIONS,
				"%s() cannot be probed on this kernel (%s): what it gives back counts as held until its address is "
				"handed out again",
				bulk[i].function, strerror(errno));
	}
	for (int releases = 1; releases >= 0; releases--)
		for (int i = 0; i < ML_KERNEL_EVENTS; i++)
			if (kernel->programs[i] && ml_kernel_sources[i].is_release == releases && attach_one(kernel, i))
				return -1;
	return 0;
}

void ml_kernel_detach(struct ml_kernel *kernel)
{
	while (kernel->n_links)
		bpf_link__destroy(kernel->links[--kernel->n_links]);
}

void ml_kernel_close(struct ml_kernel *kernel)
{
	ml_kernel_detach(kernel);
	ring_buffer__free(kernel->ring);
	bpf_object__close(kernel->object);
}

ml_u64 ml_kernel_counter(const struct ml_kernel *kernel, ml_u32 which)
{
	return ml_libbpf_counter(kernel->counters_fd, kernel->n_cpus, which);
}

ml_u64 ml_kernel_missed(const struct ml_kernel *kernel)
{
	ml_u64 sum = 0;

	for (int i = 0; i < ML_KERNEL_EVENTS; i++) {
		struct bpf_prog_info info = { 0 };
		ml_u32 bytes = sizeof(info);

		if (kernel->programs[i] && !bpf_obj_get_info_by_fd(bpf_program__fd(kernel->programs[i]), &info, &bytes))
			sum += info.recursion_misses;
	}
	return sum;
}

ml_u32 ml_kernel_find_key(const struct ml_kernel *kernel, ml_u64 key)
{
	for (ml_u32 i = 0; i < ML_KERNEL_KEY_PROBES; i++) {
		ml_u32 slot = ((ml_u32)(key >> 20) + i) & (ML_KERNEL_KEY_SLOTS - 1);

		if (kernel->keys[slot].key == key)
			return slot;
	}
	return ML_KERNEL_KEY_SLOTS;
}
