// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/inject/patch.h"
#include "agent/process/thread_states.h"
#include "preload/segment/attach_abi.h"
#include "agent/process/process_maps.h"
#include "agent/process/target_objects.h"
#include "agent/protocol/blocks.h"
#include "agent/process/proc_file.h"
#include "preload/segment/segment.h"

#define SILENCE_NS 3000000000ull /* the shim's own patience with its agent (preload/recorder/recorder_session.c) */
#define LOOK_EVERY_US 50000 /* an agent writes four times a second */
#define STATUS_BYTES 8192

/* The process's number in its own PID namespace, as getpid(2) returns it there. */
static ml_u32 own_number(pid_t pid)
{
	char status[STATUS_BYTES], *numbers;

	if (ml_proc_read(pid, "status", status, sizeof(status)) <= 0 || !(numbers = strstr(status, "\nNSpid:\t")))
		return (ml_u32)pid; /* CONFIG_PID_NS is off */
	numbers[1 + strcspn(numbers + 1, "\n")] = '\0';
	return (ml_u32)atoi(strrchr(numbers, '\t') + 1);
}

/* A session's segment in the process. address 0: there is none. */
struct found {
	ml_u64 address, alive_ns;
};

/* Finds the segment of a session in the maps, whatever route or container began it. A forked child also maps its parent's: not that. */
static struct found find_segment(pid_t pid)
{
	char *maps = ml_process_maps_read((ml_u32)pid, NULL);
	ml_u32 number = own_number(pid);
	struct found found = { 0 };
	struct ml_segment segment;
	struct ml_maps_line line;

	for (const char *at = maps; !found.address && (at = ml_process_maps_line(at, &line));) {
		if (line.offset || !ml_process_maps_has(&line, "/memfd:" ML_SEGMENT_NAME " ") ||
		    ml_target_read((ml_u32)pid, line.start, &segment, sizeof(segment)))
			continue;
		if (segment.magic == ML_SEGMENT_MAGIC && segment.pid == number && !segment.is_over)
			found = (struct found){ line.start,
						segment.agent_alive_ns ? segment.agent_alive_ns : segment.start_ns };
	}
	free(maps);
	return found;
}

/* Whether an agent reads the segment. A killed agent leaves the segment as it is: waits until the shim itself would notice the silence. */
static bool has_agent(pid_t pid)
{
	struct found first = find_segment(pid), now = first;
	ml_u64 end_ns = ml_clock_ns() + SILENCE_NS; /* whatever the process writes there */

	while (now.address && ml_clock_ns() < end_ns && ml_clock_ns() < first.alive_ns + SILENCE_NS) {
		usleep(LOOK_EVERY_US);
		now = find_segment(pid);
		if (now.alive_ns > first.alive_ns)
			return true;
	}
	return false;
}

/*
 * Claims the process until this process and its children have ended: a second session would hook the first one's hooks, and take its
 * calls. Only a process that may trace the target can claim it. Returns -1 and the refusal if another session measures it.
 */
static int claim(pid_t pid, struct ml_refusal *refusal)
{
	int fd = ml_proc_open(pid, "mem", O_RDONLY); /* opens for those who may trace the process; stays open */

	if (fd < 0)
		return 0; /* ml_inject_check() has the reason */
	if ((!flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK) && !has_agent(pid))
		return 0;
	return ml_refuse(
		refusal,
		"process %d is measured already, by another session with the shim (end that one first, or use --tracer bpf)",
		pid);
}

_Static_assert(sizeof(struct ml_injected) <= 4096, "written to a pipe at once"); /* PIPE_BUF */

#define DETACH_MS 15000 /* for the search and the call, at most */
#define TRACER_PATIENCE_MS 5000
#define TRACER_STEP_MS 10

/* Explains the result of a function of the shim. */
static void explain(const char *function, int target, struct ml_injected *injected)
{
	static const char *const reasons[] = {
		[ML_ATTACH_BAD_LINE] = "agent and shim are from different releases (install both from one)",
		[ML_ATTACH_BUSY] = "another session attaches at the same moment (try again)",
		[ML_ATTACH_PRELOADED] = "it was started with the shim and is measured already (end that session)",
		[ML_ATTACH_MEASURED] = "another session measures it already (end that one first)",
		[ML_ATTACH_NO_ALLOCATOR] = "none of its modules defines malloc and free for others: its allocator is linked "
					   "statically (use --tracer inline or bpf)",
		[ML_ATTACH_CHOSEN] = "a resolver (ifunc) chose its malloc, and no file shows which one it is (measure it "
				     "from its start: --tracer preload)",
		[ML_ATTACH_NO_SLOT] = "none of its modules calls the allocator through a slot (use --tracer inline or bpf)",
		[ML_ATTACH_NO_ORIGINAL] = "no function of its allocator can be patched (use --tracer bpf)",
		[ML_ATTACH_NO_MODULES] = "its list of modules cannot be read (use --tracer bpf)",
		[ML_ATTACH_NOT_FORKED_SAFE] =
			"a forked child could not be recognised, by neither its kernel nor its libc (use --tracer bpf)",
	};
	int result = (int)injected->result;

	if (result > 0 && result < (int)(sizeof(reasons) / sizeof(*reasons)) && reasons[result])
		ml_refuse(&injected->refusal, "process %d cannot be hooked: %s", target, reasons[result]);
	else if (result == -EPERM)
		ml_refuse(
			&injected->refusal,
			"process %d cannot be hooked: its shim answers to its own user and to root (run as one of them, or use "
			"--tracer bpf)",
			target);
	else if (result < 0)
		ml_refuse(&injected->refusal, "%s() in process %d failed: %s (use --tracer bpf)", function, target,
			  strerror(-result));
}

/* Stops attaching if the patches fail. */
static void apply_patches(const struct ml_injection *attach, struct ml_patch_result *changed)
{
	struct ml_injection detach = *attach;
	struct ml_injected detached;

	if (!ml_patch_change(attach->pid, attach->patches, true, changed))
		return;
	detach.function = "memleak_detach";
	detach.argument = NULL;
	ml_inject(&detach, &detached);
}

/*
 * After attaching: patches the code. After detaching: restores it, also if the call of the shim failed. In the other order a block freed
 * past the hooks would still count as held, and its address be returned by a call that is still recorded.
 */
static void change_code(const struct ml_injection *injection, struct ml_patch_result *changed, struct ml_injected *injected)
{
	if (!injection->argument)
		ml_patch_change(injection->pid, injection->patches, false, changed);
	else if (!*changed->refusal.text && !*injected->refusal.text)
		apply_patches(injection, changed);
	ml_stop_times_append(&injected->stops, &changed->stops);
	injected->n_attempts += changed->n_attempts;
	if (*changed->refusal.text)
		injected->refusal = changed->refusal;
}

/* A process that stays hooked because another session holds it for a moment could not be measured again. */
static void await_end_of_tracer(pid_t pid)
{
	for (int ms = 0; ms < TRACER_PATIENCE_MS && ml_inject_is_traced(pid); ms += TRACER_STEP_MS)
		usleep(TRACER_STEP_MS * 1000);
}

static bool report(int results, const struct ml_injected *injected)
{
	return write(results, injected, sizeof(*injected)) == (ssize_t)sizeof(*injected); /* the agent may be gone */
}

/* Runs in a process of its own: when that ends every thread goes on, even one that stops only then. */
static void act(int results, const struct ml_injection *injection)
{
	struct ml_injected injected = { 0 };
	struct ml_patch_result changed = { 0 };
	bool is_attach = injection->argument != NULL;
	pid_t worker = fork();

	if (worker > 0)
		waitpid(worker, NULL, 0);
	if (worker)
		return;

	if (!is_attach)
		await_end_of_tracer(injection->pid);
	if (is_attach && injection->patches)
		ml_patch_fill_slots(injection->pid, injection->patches, &changed.refusal);
	if (!*changed.refusal.text && !ml_inject(injection, &injected) && is_attach)
		explain(injection->function, injection->pid, &injected);
	if (injection->patches)
		change_code(injection, &changed, &injected);
	if (*injected.refusal.text && ml_process_is_ending((ml_u32)injection->pid)) /* then any step fails */
		ml_refuse(&injected.refusal, "process %d has ended (name another one)", injection->pid);
	_exit(!report(results, &injected));
}

/* Closes all other descriptors: the host waits for the end of the agent's output. */
static void close_others(int orders, int results)
{
	dup2(orders, 0);
	dup2(results, 1);
	dup2(open("/dev/null", O_WRONLY), 2);
	syscall(SYS_close_range, 3u, ~0u, 0u);
}

static void keep(const struct ml_injection *attach)
{
	struct ml_injection detach = *attach;
	struct ml_injected refused = { 0 };
	char byte;

	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	if (attach->argument && claim(attach->pid, &refused.refusal)) {
		report(1, &refused); /* and detaches nothing: what is attached is the other session's */
		return;
	}
	if (attach->argument)
		act(1, attach);
	while (read(0, &byte, 1) < 0 && errno == EINTR)
		;
	detach.function = "memleak_detach";
	detach.argument = NULL;
	act(1, &detach);
}

int ml_keeper_start(struct ml_keeper *keeper, pid_t target, const char *shim, const char *line,
		    const struct ml_patches *patches)
{
	struct ml_injection attach = {
		.pid = target, .library = shim, .function = "memleak_attach", .argument = line, .patches = patches
	};
	int orders[2], results[2];

	*keeper = (struct ml_keeper){ .target = target };
	if (pipe2(orders, O_CLOEXEC))
		return -1;
	if (pipe2(results, O_CLOEXEC)) {
		close(orders[0]);
		close(orders[1]);
		return -1;
	}
	keeper->pid = fork();
	if (!keeper->pid) {
		close_others(orders[0], results[1]);
		keep(&attach);
		_exit(0);
	}
	close(orders[0]);
	close(results[1]);
	keeper->orders = orders[1];
	keeper->results = results[0];
	return keeper->pid < 0 ? -1 : 0;
}

int ml_keeper_result(struct ml_keeper *keeper, struct ml_injected *injected, int timeout_ms)
{
	struct pollfd source = { .fd = keeper->results, .events = POLLIN };

	if (poll(&source, 1, timeout_ms) <= 0)
		return 0;
	return read(keeper->results, injected, sizeof(*injected)) == (ssize_t)sizeof(*injected) ? 1 : -1;
}

int ml_keeper_detach(struct ml_keeper *keeper, struct ml_injected *injected)
{
	int found;

	close(keeper->orders);
	found = ml_keeper_result(keeper, injected, DETACH_MS);
	close(keeper->results);
	if (found != 1)
		kill(keeper->pid, SIGKILL); /* its pid is not reused before waitpid() */
	waitpid(keeper->pid, NULL, 0);
	keeper->pid = 0;
	return found == 1 ? 1 : -1;
}
