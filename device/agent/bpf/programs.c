// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/programs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/signature_mask.h"
#include "agent/probes/libbpf.h"
#include "agent/probes/tracefs.h"

#define EXIT_OF_MMAP "syscalls/sys_exit_mmap"

/* All calls of such a function count, and its arguments are all that is needed at the entry. */
static bool is_unconditional(const struct ml_pair *rule)
{
	return rule->handle_bytes == 8 && !rule->when.argument && !rule->is_of_process && !rule->handle_offset &&
	       !rule->is_early;
}

/* One handle that is a pointer: the result, or stored where an argument points. A handle of a pair that is stored may be 0. */
static bool is_block(const struct ml_pair *rule)
{
	if ((rule->family && rule->is_indirect) || rule->handle_bytes != 8 || rule->n_handles != 1 || rule->replaces ||
	    rule->handle_offset || rule->is_early)
		return false;
	if (rule->handle)
		return rule->is_indirect == ML_PAIR_STORED && rule->success == ML_PAIR_ZERO && !rule->old;
	return !rule->is_indirect && rule->success == ML_PAIR_NOT_ZERO;
}

/* Like malloc: its first argument is the size. */
static bool is_plain(const struct ml_pair *rule)
{
	return rule->size_a == 1 && !rule->size_b && rule->factor == 1 && !rule->is_indirect && !rule->old;
}

static const char *program_of_entry(const struct ml_pair *rule)
{
	if (rule->is_release) {
		bool is_free = is_unconditional(rule) && rule->handle == 1 && !rule->is_indirect && !rule->through;

		return is_free ? "release_1" : "rule_release";
	}
	if (!is_unconditional(rule) || !is_block(rule))
		return "rule_acquire";
	return is_plain(rule) ? "acquire_1" : "acquire_block";
}

void ml_bpf_entry_program(const struct ml_config *config, const struct ml_probe *probe, bool is_old, char *name, size_t bytes)
{
	if (is_old)
		snprintf(name, bytes, "function_%u", probe->function);
	else
		snprintf(name, bytes, "%s", program_of_entry(&config->rules[probe->function]));
}

const char *ml_bpf_return_program(const struct ml_config *config, const struct ml_probe *probe)
{
	const struct ml_pair *rule = &config->rules[probe->function];

	if (rule->is_indirect == ML_PAIR_IN_MESSAGE)
		return rule->has_exits ? "message_exit" : "message_return";
	if (is_block(rule))
		return rule->has_exits ? "block_exit" : "block_return"; /* keeps one block */
	return rule->has_exits ? "rule_exit" : "rule_return";
}

/* Whether this kernel lets programs read the registers of system calls, by which the mmap family is followed. */
static bool sees_regions(void)
{
	return ml_tracefs_field(EXIT_OF_MMAP, "ret") > 0 && !access("/sys/kernel/btf/vmlinux", R_OK) &&
	       libbpf_probe_bpf_helper(BPF_PROG_TYPE_TRACEPOINT, BPF_FUNC_task_pt_regs, NULL) == 1;
}

bool ml_bpf_is_wanted(const struct ml_config *config, const char *program, bool is_old)
{
	if (!strncmp(program, "empty_", strlen("empty_")))
		return config->empty_probes;
	if (!strncmp(program, "region_", strlen("region_")))
		return config->mmap && !is_old && sees_regions();
	if (!strncmp(program, "code_", strlen("code_")) || !strncmp(program, "exec", strlen("exec")))
		return ml_tracefs_sees_mappings();
	if (!strcmp(program, "process_fork"))
		return config->follow || config->whole_machine || ml_tracefs_field("task/task_newtask", "clone_flags") >= 0;
	if (!strcmp(program, "process_exit") || !strcmp(program, "process_exec"))
		return true;
	for (int i = 0; i < config->n_probes; i++) {
		const struct ml_probe *probe = &config->probes[i];
		char name[64];

		ml_bpf_entry_program(config, probe, is_old, name, sizeof(name));
		if (!strcmp(program, name) || (probe->has_return && !strcmp(program, ml_bpf_return_program(config, probe))))
			return true;
	}
	return false;
}

bool ml_bpf_misses_borrowers(const struct ml_config *config)
{
	bool is_of_memory = false;

	for (int i = 0; i < config->n_probes; i++)
		is_of_memory |= !config->rules[config->probes[i].function].is_of_process;
	return is_of_memory && !config->follow && !config->whole_machine;
}

ml_u32 ml_bpf_file(const struct ml_config *config, const struct ml_probe *probe)
{
	return config->whole_machine ? probe->file : 0;
}

ml_u32 ml_bpf_buckets_shift(ml_u64 max_live)
{
	ml_u32 shift = ML_BPF_BUCKETS_SHIFT_MIN;

	while (shift < ML_BPF_BUCKETS_SHIFT_MAX && (ml_u64)ML_BPF_BUCKET_SLOTS << shift < max_live)
		shift++;
	return shift;
}

/* Of a long stack a record takes at most an eighth of the ring. */
static ml_u32 reach_of(const struct ml_config *config)
{
	ml_u64 bytes = config->extend_stacks ? ML_ABOVE_BYTES_MAX : config->stack_bytes;

	return (ml_u32)(bytes <= config->stack_bytes || bytes <= config->ring_bytes / 8 ? bytes : config->stack_bytes);
}

static ml_u32 walk_of(const struct ml_config *config)
{
	ml_u32 bytes = config->stack_bytes ? reach_of(config) : ML_STACK_BYTES_MAX;

	return bytes < ML_BPF_WALK_BYTES ? bytes : ML_BPF_WALK_BYTES;
}

ml_u32 ml_bpf_alternate_stack(void)
{
	struct btf *btf = btf__load_vmlinux_btf();
	int low = btf ? ml_libbpf_member(btf, "task_struct", "sas_ss_sp") : -1;
	int bytes = low > 0 ? ml_libbpf_member(btf, "task_struct", "sas_ss_size") : -1;

	btf__free(btf);
	return bytes == low + (int)sizeof(long) ? (ml_u32)low : 0;
}

int ml_bpf_set_options(struct bpf_object *object, const struct ml_config *config, bool finds_mappings, ml_u32 alternate_stack)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, ML_BPF_OPTIONS_SECTION);
	struct ml_bpf_options options = { .follow = config->follow || config->whole_machine,
					  .is_system_wide = config->whole_machine,
					  .tracer_tgid = (ml_u32)config->bystander,
					  .stack_bytes = config->no_evidence > 1 ? 0 : config->stack_bytes,
					  .left_out = config->no_evidence == 1 ? ML_BPF_KNOWN_LEFT_OUT :
						      config->whole_machine    ? ML_BPF_SHARED_LEFT_OUT :
										 ML_BPF_NONE_LEFT_OUT,
					  .every_stack = config->every_stack,
					  .reach_bytes = reach_of(config),
					  .walk_bytes = walk_of(config),
					  .finds_mappings = finds_mappings,
					  .alternate_stack = alternate_stack,
					  .whole_stacks = config->unwind != ML_UNWIND_CFI,
					  .events = config->events,
					  .buckets_shift = ml_bpf_buckets_shift(config->max_live),
					  .min_size = config->min_size,
					  .max_size = config->max_size,
					  .signature_mask = ml_signature_mask(),
					  .ring_bytes = config->ring_bytes,
					  .quiet_flags = BPF_RB_NO_WAKEUP,
					  .wakeup_flags = BPF_RB_FORCE_WAKEUP,
					  .sees_mappings = ml_tracefs_sees_mappings(),
					  .fork_pid = ml_tracefs_offset("task/task_newtask", "pid"),
					  .fork_flags = ml_tracefs_offset("task/task_newtask", "clone_flags"),
					  .munmap_addr = ml_tracefs_offset("syscalls/sys_enter_munmap", "addr"),
					  .munmap_len = ml_tracefs_offset("syscalls/sys_enter_munmap", "len"),
					  .mmap_addr = ml_tracefs_offset("syscalls/sys_enter_mmap", "addr"),
					  .mmap_len = ml_tracefs_offset("syscalls/sys_enter_mmap", "len"),
					  .mmap_prot = ml_tracefs_offset("syscalls/sys_enter_mmap", "prot"),
					  .mmap_flags = ml_tracefs_offset("syscalls/sys_enter_mmap", "flags"),
					  .syscall_ret = ml_tracefs_offset(EXIT_OF_MMAP, "ret") };

	for (int i = 0; i < config->n_probes; i++) {
		const struct ml_probe *probe = &config->probes[i];
		ml_u32 file = ml_bpf_file(config, probe);

		if (file >= ML_BPF_FILES)
			return -E2BIG;
		if (file >= options.n_files)
			options.n_files = file + 1;
		options.functions[file][probe->function] = (struct ml_bpf_function){ .entry_offset = probe->entry_offset,
										     .text_low = probe->text_low,
										     .text_high = probe->text_high };
	}
	options.n_pairs = (ml_u32)config->n_pairs;
	memcpy(options.rules, config->rules, sizeof(options.rules));
	for (size_t i = 0; i < ML_FN_MAX; i++)
		options.n_exited += options.rules[i].has_exits;
	return map ? bpf_map__set_initial_value(map, &options, sizeof(options)) : -ENOENT;
}
