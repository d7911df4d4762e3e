// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/shim/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"

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
