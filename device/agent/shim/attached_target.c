// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/attached_target.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/process/proc_file.h"
#include "preload/segment/attach_abi.h"
#include "agent/protocol/abstract_socket.h"
#include "agent/protocol/config.h"
#include "agent/process/descendants.h"
#include "agent/process/thread_states.h"

/* getrandom(2) exists since Linux 3.17. */
static int fill_random(void *bytes, size_t n_bytes)
{
	ssize_t n = getrandom(bytes, n_bytes, 0);
	int fd = n < 0 && errno == ENOSYS ? open("/dev/urandom", O_RDONLY | O_CLOEXEC) : -1;

	if (fd >= 0) {
		n = read(fd, bytes, n_bytes);
		close(fd);
	}
	return n == (ssize_t)n_bytes ? 0 : -1;
}

/* The name is in /proc/net/unix, which every user can read: it has no bit in common with the nonce. */
static int make_up(char text[ML_SESSION_WORD_MAX])
{
	struct {
		ml_u64 name;
		struct ml_nonce nonce;
	} random;

	if (fill_random(&random, sizeof(random)))
		return -1;
	snprintf(text, ML_SESSION_WORD_MAX, "memleakd-%016llx:%016llx%016llx", (unsigned long long)random.name,
		 (unsigned long long)random.nonce.words[0], (unsigned long long)random.nonce.words[1]);
	return 0;
}

/* The two halves, by a copy of each: ml_config_number() reads whole texts. */
static bool parse_nonce(const char *digits, struct ml_nonce *nonce)
{
	char half[ML_NONCE_DIGITS / 2 + 1];

	for (int i = 0; i < 2; i++, digits += sizeof(half) - 1) {
		snprintf(half, sizeof(half), "%s", digits);
		if (strspn(half, "0123456789abcdefABCDEF") != sizeof(half) - 1 || !ml_config_number(half, 16, &nonce->words[i]))
			return false;
	}
	return !*digits && ml_nonce_is_set(nonce);
}

static int parse(struct ml_session_word *word)
{
	const char *colon = strrchr(word->text, ':');

	errno = EINVAL;
	if (!colon || colon == word->text || !parse_nonce(colon + 1, &word->nonce))
		return -1;
	snprintf(word->name, sizeof(word->name), "%.*s", (int)(colon - word->text), word->text);
	return 0;
}

/* Makes up a word of random parts, or parses an awaited one. Returns a listener by its name, or -1 with errno. */
static int listen_by_word(struct ml_session_word *word, const char *awaited)
{
	errno = EINVAL;
	if (awaited && snprintf(word->text, sizeof(word->text), "%s", awaited) >= (int)sizeof(word->text))
		return -1;
	return (!awaited && make_up(word->text)) || parse(word) ? -1 : ml_abstract_listen(word->name);
}

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
	listener = listen_by_word(word, config->await);
	if (listener < 0)
		ml_blocks_error(ML_REASON_TRACER_ERROR, "could not listen for the target: %s", strerror(errno));
	if (way_back >= 0) {
		setns(way_back, CLONE_NEWNET);
		close(way_back);
	}
	return listener;
}

int ml_attached_start(struct ml_attached_target *target, pid_t pid, const struct ml_config *config,
		      const struct ml_session_word *word)
{
	char line[ML_ATTACH_LINE_MAX];

	if (!config->shim_path || access(config->shim_path, R_OK))
		return ml_blocks_error(ML_REASON_TRACER_ERROR, "could not read the shim %s: %s (build it with `make device`)",
				       config->shim_path ? config->shim_path : "(none named)", strerror(errno));
	target->shim = config->shim_path;
	target->patches = config->patches;
	snprintf(line, sizeof(line), "%s mode=%s", word->text, config->hook);
	if (!ml_keeper_start(&target->keeper, pid, config->shim_path, line, config->patches))
		return 0;
	return ml_blocks_error(ML_REASON_TRACER_ERROR,
			       "could not start the keeper of process %d: %s (free memory, or processes)", (int)pid,
			       strerror(errno));
}

const char *ml_attached_poll(struct ml_attached_target *target)
{
	struct ml_injected injected;
	int found;

	if (target->is_attached || !target->keeper.pid)
		return NULL;
	found = ml_keeper_result(&target->keeper, &injected, 0);
	if (!found)
		return NULL;
	if (found > 0 && !*injected.refusal.text) {
		target->is_attached = true;
		ml_stop_times_write(&injected.stops, (ml_u32)target->keeper.target, ML_STOP_ATTACH);
		return NULL;
	}
	if (found > 0)
		target->refusal = injected.refusal;
	else
		ml_refuse(&target->refusal, "the keeper of the process died (try again)");
	return target->refusal.text;
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

/* ---- its children ------------------------------------------------------------------------------------- */

static bool has_joined(const struct ml_attached_children *children, ml_u32 pid)
{
	for (size_t i = 0; i < children->processes->n_targets; i++)
		if (children->processes->targets[i]->pid == pid)
			return true;
	return false;
}

static void attach(void *context, ml_u32 pid)
{
	struct ml_attached_children *children = context;

	if (has_joined(children, pid))
		return;
	if (children->count == ML_ATTACHED_CHILDREN_MAX || children->config->patches)
		children->n_beyond++;
	else if (!ml_attached_start(&children->targets[children->count], (pid_t)pid, children->config, children->word))
		children->count++;
}

static void start(struct ml_attached_children *children)
{
	const struct ml_config *config = children->config;
	enum ml_descendants found = ml_descendants_each(config->pid, attach, children);
	const char *reason = config->patches ? "inline hooks are placed in one process (use --tracer plt or bpf)" :
			     found == ML_DESCENDANTS_UNKNOWN ? "this kernel does not list them (name each by --pid)" :
							       "there are too many (use --tracer bpf)";

	children->n_beyond += found != ML_DESCENDANTS_ALL;
	children->processes->n_unmeasured += children->n_beyond;
	if (children->n_beyond)
		ml_blocks_log("%llu or more of its child processes were not measured: %s",
			      (unsigned long long)children->n_beyond, reason);
}

static void take_result(struct ml_attached_children *children, struct ml_attached_target *target, struct ml_regions *regions)
{
	const char *refusal = ml_attached_poll(target);
	ml_u32 pid = (ml_u32)target->keeper.target;

	if (!refusal)
		return;
	/* One that was forked while the target was attached has joined by itself, and one that has ended holds nothing. */
	if (!has_joined(children, pid) && !ml_process_is_ending(pid))
		ml_preload_processes_refuse(children->processes, pid, refusal, regions);
	ml_attached_end(target, true);
}

void ml_attached_children_poll(struct ml_attached_children *children, const struct ml_config *config,
			       const struct ml_session_word *word, struct ml_preload_processes *processes,
			       struct ml_regions *regions)
{
	bool is_first = !children->config;

	children->config = config;
	children->word = word;
	children->processes = processes;
	if (is_first)
		start(children);
	for (size_t i = 0; i < children->count; i++)
		take_result(children, &children->targets[i], regions);
}

void ml_attached_children_end(struct ml_attached_children *children)
{
	for (size_t i = children->count; i-- > 0;)
		ml_attached_end(&children->targets[i], ml_process_is_ending((ml_u32)children->targets[i].keeper.target));
	children->count = 0;
}
