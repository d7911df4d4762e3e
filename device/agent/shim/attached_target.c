// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/attached_target.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/process/proc_file.h"
#include "preload/segment/attach_abi.h"

/*
 * Enters the network namespace of the process, because abstract socket names belong to one. Returns the way back, -1 if the namespace is
 * the same (or unknown: a process that is gone is refused later), or -2 with errno.
 */
static int enter_network(pid_t pid)
{
	struct stat ours, its;
	int way_back = ml_proc_open(getpid(), "ns/net", O_RDONLY), space = ml_proc_open(pid, "ns/net", O_RDONLY), error = 0;
	bool is_other =
		way_back >= 0 && space >= 0 && !fstat(way_back, &ours) && !fstat(space, &its) && ours.st_ino != its.st_ino;

	if (is_other && setns(space, CLONE_NEWNET))
		error = errno;
	if (space >= 0)
		close(space);
	if (is_other && !error)
		return way_back;
	if (way_back >= 0)
		close(way_back);
	errno = error;
	return error ? -2 : -1;
}

int ml_attached_listen(const struct ml_config *config, struct ml_session_word *word)
{
	int way_back = config->pid ? enter_network(config->pid) : -1, listener;

	if (way_back == -2)
		return ml_blocks_error(
			ML_REASON_TARGET_ERROR,
			"process %d is in another network namespace, which the agent could not enter: %s (run as root)",
			config->pid, strerror(errno));
	listener = ml_session_word_listen(word, config->await);
	if (listener < 0)
		ml_blocks_error(ML_REASON_TRACER_ERROR, "could not listen for the target: %s", strerror(errno));
	if (way_back >= 0) {
		setns(way_back, CLONE_NEWNET);
		close(way_back);
	}
	return listener;
}

int ml_attached_start(struct ml_attached_target *target, const struct ml_config *config, const struct ml_session_word *word)
{
	char line[ML_ATTACH_LINE_MAX];

	if (!config->shim_path || access(config->shim_path, R_OK))
		return ml_blocks_error(ML_REASON_TRACER_ERROR, "could not read the shim %s: %s (build it with `make device`)",
				       config->shim_path ? config->shim_path : "(none named)", strerror(errno));
	target->shim = config->shim_path;
	target->patches = config->patches;
	snprintf(line, sizeof(line), "%s mode=%s", word->text, config->hook);
	if (!ml_keeper_start(&target->keeper, config->pid, config->shim_path, line, config->patches))
		return 0;
	return ml_blocks_error(ML_REASON_TRACER_ERROR,
			       "could not start the keeper of process %d: %s (free memory, or processes)", config->pid,
			       strerror(errno));
}

int ml_attached_poll(struct ml_attached_target *target)
{
	struct ml_injected injected;
	int found;

	if (target->is_attached || !target->keeper.pid)
		return 0;
	found = ml_keeper_result(&target->keeper, &injected, 0);
	if (!found)
		return 0;
	if (found > 0 && !*injected.refusal.text) {
		target->is_attached = true;
		ml_stop_times_write(&injected.stops, (ml_u32)target->keeper.target, ML_STOP_ATTACH);
		return 0;
	}
	return ml_blocks_error(ML_REASON_TARGET_ERROR, "%s",
			       found > 0 ? injected.refusal.text : "the keeper of the process died (try again)");
}

void ml_attached_end(struct ml_attached_target *target, bool is_target_gone)
{
	struct ml_injected injected;
	int found;

	if (!target->keeper.pid)
		return;
	found = ml_keeper_detach(&target->keeper, &injected);
	if (found < 0 && target->is_attached &&
	    !ml_keeper_start(&target->keeper, target->keeper.target, target->shim, NULL, target->patches))
		found = ml_keeper_detach(&target->keeper, &injected);
	if (is_target_gone || !target->is_attached)
		return;
	if (found > 0)
		ml_stop_times_write(&injected.stops, (ml_u32)target->keeper.target, ML_STOP_DETACH);
	if (found < 0)
		ml_blocks_log(
			"process %d may still be hooked, because the keeper did not answer; restart the process to remove the hooks",
			target->keeper.target);
	else if (*injected.refusal.text)
		ml_blocks_log("process %d is still hooked, but records nothing: %s", target->keeper.target,
			      injected.refusal.text);
	else if ((int)injected.result > 0)
		ml_blocks_log("process %d: %d slots could not be restored", target->keeper.target, (int)injected.result);
}
