// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/uprobe_multi.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/process_maps.h"
#include "agent/process/thread_states.h"
#include "agent/protocol/extend.h"

#define CLOSING_THREADS 128

/* The program must be loaded for BPF_TRACE_UPROBE_MULTI. Returns the link's descriptor, or -1 with errno set and no probe placed. */
static int link_probes(int program, const struct ml_uprobe_multi *probes)
{
	union bpf_attr attributes = {};

	attributes.link_create.prog_fd = (ml_u32)program;
	attributes.link_create.attach_type = BPF_TRACE_UPROBE_MULTI;
	attributes.link_create.uprobe_multi.path = (ml_u64)(unsigned long)probes->path;
	attributes.link_create.uprobe_multi.offsets = (ml_u64)(unsigned long)probes->offsets;
	attributes.link_create.uprobe_multi.cookies = (ml_u64)(unsigned long)probes->cookies;
	attributes.link_create.uprobe_multi.cnt = probes->n;
	attributes.link_create.uprobe_multi.flags = probes->at_return ? BPF_F_UPROBE_MULTI_RETURN : 0;
	attributes.link_create.uprobe_multi.pid = probes->pid > 0 ? (ml_u32)probes->pid : 0;
	return (int)syscall(SYS_bpf, BPF_LINK_CREATE, &attributes, sizeof(attributes));
}

/* ---- links ----------------------------------------------------------------------------------------- */

static int keep(struct ml_links *links, struct ml_link link)
{
	if (ML_EXTEND(links->all, links->n, links->room)) {
		links->all[links->n++] = link;
		return 0;
	}
	if (link.link)
		bpf_link__destroy(link.link);
	else
		close(link.file);
	return ENOMEM;
}

int ml_links_keep(struct ml_links *links, struct bpf_link *link)
{
	return link ? keep(links, (struct ml_link){ .link = link }) : errno;
}

/* Places `probes` by one link. If the kernel refuses, halves them, down to the probe that causes the error. */
static void place_many(struct ml_links *links, int program, struct ml_uprobe_multi probes, ml_s32 *errors)
{
	int link = link_probes(program, &probes), error = link < 0 ? errno : keep(links, (struct ml_link){ .file = link });
	ml_u32 n = probes.n, half = n / 2;

	if (n == 1)
		errors[0] = error;
	if (!error || n == 1)
		return;
	probes.n = half;
	place_many(links, program, probes, errors);
	probes.offsets += half;
	probes.cookies += half;
	probes.n = n - half;
	place_many(links, program, probes, errors + half);
}

static int place_one(struct ml_links *links, struct bpf_program *program, const struct ml_uprobe_multi *probes, ml_u32 i)
{
	LIBBPF_OPTS(bpf_uprobe_opts, how, .retprobe = probes->at_return, .bpf_cookie = probes->cookies[i]);

	return ml_links_keep(links,
			     bpf_program__attach_uprobe_opts(program, probes->pid, probes->path, probes->offsets[i], &how));
}

static void place_runs(struct ml_links *links, struct bpf_program *program, const struct ml_uprobe_multi *probes,
		       bool has_multi, ml_s32 *errors)
{
	for (ml_u32 first = 0, end; first < probes->n; first = end) {
		struct ml_uprobe_multi run = *probes;

		for (end = first; end < probes->n && !errors[end] && (has_multi || end == first);)
			end++;
		run.offsets += first;
		run.cookies += first;
		run.n = end - first;
		if (!run.n)
			end++;
		else if (has_multi)
			place_many(links, bpf_program__fd(program), run, errors + first);
		else
			errors[first] = place_one(links, program, probes, first);
	}
}

void ml_links_place(struct ml_links *links, struct bpf_program *program, const struct ml_uprobe_multi *probes, bool has_multi,
		    ml_s32 *errors)
{
	const struct ml_spared none = { 0 };
	struct ml_spared_hold hold;
	bool is_held =
		!ml_spared_begin(&hold, probes->pid > 0 ? &none : &links->spared, probes->path, probes->offsets, probes->n);
	int error = errno;

	for (ml_u32 i = 0; i < probes->n && !is_held; i++)
		errors[i] = errors[i] ? errors[i] : error;
	if (!is_held)
		return;
	place_runs(links, program, probes, has_multi, errors);
	ml_spared_end(&hold);
}

struct share {
	struct ml_links *links;
	size_t first;
};

static void *close_share(void *argument)
{
	const struct share *share = argument;

	for (size_t i = share->first; i < share->links->n; i += CLOSING_THREADS)
		if (share->links->all[i].link)
			bpf_link__destroy(share->links->all[i].link);
		else
			close(share->links->all[i].file);
	return NULL;
}

void ml_links_close(struct ml_links *links)
{
	struct share shares[CLOSING_THREADS];
	pthread_t threads[CLOSING_THREADS];
	bool is_started[CLOSING_THREADS];

	for (size_t i = 0; i < CLOSING_THREADS; i++) {
		shares[i] = (struct share){ links, i };
		is_started[i] = i < links->n && !pthread_create(&threads[i], NULL, close_share, &shares[i]);
		if (!is_started[i])
			close_share(&shares[i]);
	}
	for (size_t i = 0; i < CLOSING_THREADS; i++)
		if (is_started[i])
			pthread_join(threads[i], NULL);
	free(links->all);
	free(links->spared.pids);
	*links = (struct ml_links){ 0 };
}

/* ---- does it work? ------------------------------------------------------------------------------- */

__attribute__((noinline, used)) static void *probed_by_trial(void *argument)
{
	__asm__ volatile("" ::: "memory");
	return argument;
}

/* Offset of an address of the agent in its own file; 0: unknown. */
static ml_u64 own_offset(ml_u64 address)
{
	char *maps = ml_process_maps_read((ml_u32)getpid(), NULL);
	struct ml_maps_line line;
	ml_u64 offset = ml_process_maps_find(maps, address, &line) ? address - line.start + line.offset : 0;

	free(maps);
	return offset;
}

/* Loads a program that writes 1 into the map's only value. */
static int load_marking(int map)
{
	LIBBPF_OPTS(bpf_prog_load_opts, how, .expected_attach_type = (enum bpf_attach_type)BPF_TRACE_UPROBE_MULTI);
	const struct bpf_insn code[] = {
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_VALUE, .imm = map },
		{},
		{ .code = BPF_ST | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_1, .imm = 1 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};

	return bpf_prog_load(BPF_PROG_TYPE_KPROBE, "probe_trial", "GPL", code, sizeof(code) / sizeof(*code), &how);
}

static bool call_in_thread(void)
{
	pthread_t thread;

	return !pthread_create(&thread, NULL, probed_by_trial, NULL) && !pthread_join(thread, NULL);
}

static int call_and_exit(void *unused)
{
	probed_by_trial(unused);
	_exit(0);
}

/* The child is not reported to anybody (exit signal 0) and has ended when it returns. */
static bool call_in_borrower(void)
{
	_Alignas(16) static char stack[16384];
	pid_t child = clone(call_and_exit, stack + sizeof(stack), CLONE_VM | CLONE_VFORK, NULL);

	return child > 0 && waitpid(child, NULL, __WCLONE) == child;
}

static pid_t trial_child;
static int trial_gate[2]; /* the child begins when its write end is closed */

static void *call_alone(void *unused)
{
	while (!ml_thread_has_ended((ml_u32)getpid(), (ml_u32)getpid()))
		usleep(1000);
	probed_by_trial(unused);
	_exit(0);
}

/* A child that ends its first thread and then calls. */
static bool fork_child(void)
{
	pthread_t thread;
	char byte;

	if (pipe2(trial_gate, O_CLOEXEC))
		return false;
	trial_child = fork();
	if (!trial_child) {
		close(trial_gate[1]);
		if (!read(trial_gate[0], &byte, 1) && !pthread_create(&thread, NULL, call_alone, NULL))
			syscall(SYS_exit, 0);
		_exit(1);
	}
	close(trial_gate[0]);
	if (trial_child < 0)
		close(trial_gate[1]);
	return trial_child > 0;
}

static bool call_in_child(void)
{
	close(trial_gate[1]);
	return waitpid(trial_child, NULL, 0) == trial_child;
}

/* Whether a link on the process sees that call. */
static bool is_seen(int program, int map, pid_t pid, bool (*call)(void))
{
	ml_u64 offset = own_offset((ml_u64)(unsigned long)probed_by_trial), cookie = 0, mark = 0;
	const struct ml_uprobe_multi probe = {
		.path = "/proc/self/exe", .offsets = &offset, .cookies = &cookie, .n = 1, .pid = pid
	};
	int link = offset ? link_probes(program, &probe) : -1;
	ml_u32 zero = 0;
	bool is_ready = link >= 0 && !bpf_map_update_elem(map, &zero, &mark, BPF_ANY);
	bool is_called = call(); /* also if it cannot be seen: a child waits for it */

	if (link >= 0)
		close(link);
	return is_ready && is_called && !bpf_map_lookup_elem(map, &zero, &mark) && mark;
}

static bool try_calls(int program, int map, enum ml_uprobe_multi_calls calls)
{
	switch (calls) {
	case ML_CALLS_OF_THREADS: return is_seen(program, map, getpid(), call_in_thread);
	case ML_CALLS_IN_LENT_MEMORY: return is_seen(program, map, getpid(), call_in_borrower);
	default: return fork_child() && is_seen(program, map, trial_child, call_in_child);
	}
}

static bool try_link(enum ml_uprobe_multi_calls calls)
{
	int map = bpf_map_create(BPF_MAP_TYPE_ARRAY, "probe_trial", sizeof(ml_u32), sizeof(ml_u64), 1, NULL);
	int program = map < 0 ? -1 : load_marking(map);
	bool works = program >= 0 && try_calls(program, map, ML_CALLS_OF_THREADS) &&
		     (calls == ML_CALLS_OF_THREADS || try_calls(program, map, calls));

	if (program >= 0)
		close(program);
	if (map >= 0)
		close(map);
	return works;
}

bool ml_uprobe_multi_sees(enum ml_uprobe_multi_calls calls)
{
	static int sees[ML_CALLS_KINDS] = { -1, -1, -1 };

	if (sees[calls] < 0)
		sees[calls] = try_link(calls);
	return sees[calls];
}
