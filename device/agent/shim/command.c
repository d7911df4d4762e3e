// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"

#define SPARSE_SAMPLES 4096u /* from here on a sampled block is alone on its page of shadow memory */
#define LINKER_FAILED 127 /* glibc's elf/dl-error-minimal.c: fatal_error(); a shell's, of a command that it does not find */

int ml_preload_command_start(const struct ml_config *config, const char *word, struct ml_child *child)
{
	const char *users = getenv("LD_PRELOAD");
	char *preload, *variable;
	char *extra[3] = { NULL };

	if (!config->shim_path || access(config->shim_path, R_OK))
		return ml_blocks_error(ML_REASON_TRACER_ERROR, "could not read the shim %s: %s (build it with `make device`)",
				       config->shim_path ? config->shim_path : "(none named)", strerror(errno));
	for (int i = 0; i < config->n_env_changes; i++)
		if (!strncmp(config->env_changes[i], "LD_PRELOAD=", 11))
			users = config->env_changes[i] + 11;
	if (asprintf(&preload, "LD_PRELOAD=%s%s%s", config->shim_path, users && *users ? ":" : "",
		     users && *users ? users : "") < 0 ||
	    asprintf(&variable, "MEMLEAK_SESSION=%s", word) < 0)
		return ml_blocks_error(ML_REASON_TRACER_ERROR, "out of memory");
	extra[0] = preload;
	extra[1] = variable;
	return ml_spawn_stopped(config, (struct ml_spawn_extra){ .env = extra }, child) ? -1 : 0;
}

enum ml_reason ml_preload_report_absent(const struct ml_session *base)
{
	if (base->config->pid)
		ml_blocks_error(ML_REASON_TRACER_ERROR, "process %d was not attached to yet (wait longer)", base->config->pid);
	else if (base->config->await)
		ml_blocks_error(ML_REASON_TRACER_ERROR, "no process loaded the recorder (was the target started anew?)");
	else if (!WIFEXITED(base->wait_status) || WEXITSTATUS(base->wait_status) != LINKER_FAILED)
		ml_blocks_error(ML_REASON_TRACER_ERROR,
				"%s never loaded the recorder: linked statically, or set-user-ID (use --tracer bpf)",
				base->config->argv[0]);
	else {
		ml_blocks_error(ML_REASON_TARGET_ERROR,
				"%s ended before its first code, with the dynamic linker's exit status %d (see its message)",
				base->config->argv[0], LINKER_FAILED);
		return ML_REASON_TARGET_ERROR;
	}
	return ML_REASON_TRACER_ERROR;
}

struct ml_settings ml_preload_settings(const struct ml_config *config)
{
	return (struct ml_settings){
		.sample_bytes = config->sample_bytes,
		.min_size = config->min_size,
		.max_size = config->max_size,
		.max_live = config->max_live,
		.stack_bytes = config->stack_bytes < ML_STACK_BYTES_MAX ? config->stack_bytes : ML_STACK_BYTES_MAX,
		.key_bytes = 65536,
		.flags = (config->every_stack ? ML_SETTING_EVERY_STACK : 0) | (config->follow ? ML_SETTING_FOLLOW : 0) |
			 (config->events ? ML_SETTING_EVENTS : 0) | (config->mmap ? ML_SETTING_MMAP : 0) |
			 (config->no_python_objects ? ML_SETTING_NO_PYTHON_OBJECTS : 0) |
			 (config->no_python_lines ? ML_SETTING_NO_PYTHON_LINES : 0) |
			 (config->no_evidence ? ML_SETTING_NO_EVIDENCE : 0) | (config->no_heap ? ML_SETTING_NO_HEAP : 0) |
			 (config->extend_stacks && sizeof(void *) == 8 ? ML_SETTING_EXTEND_STACKS : 0) |
			 (config->unwind != ML_UNWIND_CFI ? ML_SETTING_FRAME_CHAIN : 0) |
			 (config->unwind == ML_UNWIND_FP ? ML_SETTING_NO_STACK : 0),
		.n_threads = sizeof(void *) == 8 ? 8192 : 256,
		.n_keys = sizeof(void *) == 8 ? 1u << 20 : 1u << 17,
		.ring_bytes = sizeof(void *) == 8 ? 8u << 20 : 1u << 20,
		/* 16 GiB of heap. A small table, or one of rare samples, is better hashed. */
		.n_chunks = sizeof(void *) == 8 && config->max_live >= 1u << 16 && config->sample_bytes < SPARSE_SAMPLES ?
				    1u << 16 :
				    0,
	};
}

_Static_assert(ML_PAIR_NAMES == ML_PAIR_NAMES_MAX, "room for all names of the host");

void ml_preload_settings_pairs(struct ml_pair_table *table, const struct ml_config *config)
{
	memcpy(table->rules, &config->rules[ML_FN_PAIR], sizeof(table->rules));
	for (int i = 0; i < config->n_pair_names; i++) {
		table->names[i].function = config->pair_names[i].function;
		table->names[i].is_size_function = config->pair_names[i].is_size_function;
		snprintf(table->names[i].name, sizeof(table->names[i].name), "%s", config->pair_names[i].name);
	}
	table->n_names = (ml_u32)config->n_pair_names;
	table->n_rules = (ml_u32)config->n_pairs;
}

void ml_preload_settings_log(const struct ml_config *config)
{
	if (config->mmap > 1 && sizeof(long) < 8)
		ml_blocks_gap(ML_GAP_FUNCTIONS,
			      "the preload tracer keeps no ledger of mmap on 32-bit systems (use --tracer bpf)");
}

enum ml_collector ml_preload_collector(const struct ml_config *config)
{
	if (!config->hook)
		return ML_COLLECTOR_PRELOAD;
	return strcmp(config->hook, "plt") ? ML_COLLECTOR_INLINE : ML_COLLECTOR_PLT;
}
