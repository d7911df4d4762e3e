// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/bpf/attach.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/libbpf.h"
#include "agent/bpf/programs.h"
#include "agent/probes/uprobe_multi.h"

/*
 * A probe acts from the moment it is placed. The order is: functions that release blocks, that move them, that make them. In any other
 * order a block could be counted whose free is not seen yet, and be held for ever.
 */
enum { TURN_RELEASE, TURN_MOVE, TURN_MAKE, TURNS };

/* One side of a probe: at the function's entry, or at its return. */
struct site {
	const struct ml_probe *probe;
	bool at_return;
	struct bpf_program *program;
	ml_u64 offset, cookie;
};

struct sites {
	size_t n;
	struct site all[2 * ML_MAX_PROBES];
};

static int turn_of(const struct ml_config *config, const struct ml_probe *probe)
{
	if (config->rules[probe->function].old || probe->function == ML_FN_MREMAP)
		return TURN_MOVE;
	return probe->has_return && probe->function != ML_FN_MUNMAP ? TURN_MAKE : TURN_RELEASE;
}

static int add(struct sites *sites, const struct ml_bpf *bpf, const struct ml_config *config, const struct ml_probe *probe,
	       bool at_return)
{
	struct site *site = &sites->all[sites->n++];
	char name[64];

	*site = (struct site){
		.probe = probe, .at_return = at_return, .offset = at_return ? probe->return_offset : probe->entry_offset,
	};
	ml_bpf_entry_program(config, probe, bpf->is_old, name, sizeof(name));
	if (!bpf->is_old) /* without a cookie, kernels that have none can place the probe */
		site->cookie = probe->function | (ml_u64)ml_bpf_file(config, probe) << ML_BPF_FILE_SHIFT;
	if (at_return)
		snprintf(name, sizeof(name), "%s", ml_bpf_return_program(config, probe));
	if (config->empty_probes)
		strcpy(name, at_return ? "empty_return" : "empty_entry");
	site->program = bpf_object__find_program_by_name(bpf->object, name);
	if (site->program)
		return 0;
	ml_blocks_error(ML_REASON_USAGE_ERROR, "no BPF program for %s", name);
	return -1;
}

/* Lists sites in the order of placing. Returns come before entries: an entry without its return would be counted as missed. */
static int list(struct sites *sites, const struct ml_bpf *bpf, const struct ml_config *config)
{
	sites->n = 0;
	for (int turn = 0; turn < TURNS; turn++)
		for (int side = 0; side < 2; side++)
			for (int i = 0; i < config->n_probes; i++) {
				const struct ml_probe *probe = &config->probes[i];
				bool at_return = side == 0;

				if (turn_of(config, probe) == turn && (probe->has_return || !at_return) &&
				    add(sites, bpf, config, probe, at_return))
					return -1;
			}
	return 0;
}

/* ---- placing ------------------------------------------------------------------------------------- */

static int keep_link(struct ml_bpf *bpf, struct bpf_link *link)
{
	if (!link)
		return -1;
	bpf->links[bpf->n_links++] = link;
	return 0;
}

/* A process that ended is a zombie or gone. An unreadable state does not count as ended. */
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

static int refuse(const struct site *site, int pid, int error)
{
	if (pid > 0 && has_ended(pid)) {
		ml_blocks_error(ML_REASON_TARGET_ERROR, "pid %d ended while it was being attached to", pid);
		return -1;
	}
	snprintf(ml_libbpf_warning, sizeof(ml_libbpf_warning), "%s+0x%llx in %s", bpf_program__name(site->program),
		 (unsigned long long)site->offset, site->probe->path);
	return ml_bpf_fail("could not place a probe", error);
}

static int place_one(struct ml_bpf *bpf, const struct site *site, int pid)
{
	LIBBPF_OPTS(bpf_uprobe_opts, how, .retprobe = site->at_return, .bpf_cookie = site->cookie);

	if (!keep_link(bpf, bpf_program__attach_uprobe_opts(site->program, pid, site->probe->path, site->offset, &how)))
		return 0;
	return refuse(site, pid, errno);
}

static bool go_together(const struct site *one, const struct site *other)
{
	return one->program == other->program && one->at_return == other->at_return && !strcmp(one->probe->path, other->probe->path);
}

/* Places n sites by one link. If the kernel refuses, halves them, down to the site that causes the error. */
static int place_many(struct ml_bpf *bpf, const struct site *const *sites, ml_u32 n, int pid)
{
	ml_u64 offsets[2 * ML_MAX_PROBES], cookies[2 * ML_MAX_PROBES];
	const struct ml_uprobe_multi probes = {
		.path = sites[0]->probe->path, .offsets = offsets, .cookies = cookies, .n = n, .pid = pid, .at_return = sites[0]->at_return,
	};
	int link, error;

	for (ml_u32 i = 0; i < n; i++) {
		offsets[i] = sites[i]->offset;
		cookies[i] = sites[i]->cookie;
	}
	link = ml_uprobe_multi_link(bpf_program__fd(sites[0]->program), &probes);
	if (link >= 0) {
		bpf->multi_links[bpf->n_multi_links++] = link;
		return 0;
	}
	error = errno;
	if (n == 1)
		return refuse(sites[0], pid, error);
	return place_many(bpf, sites, n / 2, pid) || place_many(bpf, sites + n / 2, n - n / 2, pid) ? -1 : 0;
}

/* Places by one link all sites of one turn, side, program and file, wherever they are in the list. */
static int place_all(struct ml_bpf *bpf, const struct ml_config *config, const struct sites *sites, int pid)
{
	bool is_placed[2 * ML_MAX_PROBES] = { false };

	for (size_t i = 0; i < sites->n; i++) {
		const struct site *first = &sites->all[i], *together[2 * ML_MAX_PROBES];
		ml_u32 n = 0;

		if (!bpf->has_multi && place_one(bpf, first, pid))
			return -1;
		if (!bpf->has_multi || is_placed[i])
			continue;
		for (size_t j = i; j < sites->n && turn_of(config, sites->all[j].probe) == turn_of(config, first->probe); j++)
			if (go_together(first, &sites->all[j])) {
				together[n++] = &sites->all[j];
				is_placed[j] = true;
			}
		if (place_many(bpf, together, n, pid))
			return -1;
	}
	return 0;
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
	static struct sites sites;

	*ml_libbpf_warning = '\0';
	attach_one(bpf, "process_exit", NULL, "sched_process_exit");
	attach_one(bpf, "process_exec", NULL, "sched_process_exec");
	if (attach_one(bpf, "code_mapped", "syscalls", "sys_enter_mmap") ||
	    attach_one(bpf, "code_unmapped", "syscalls", "sys_enter_munmap") ||
	    attach_one(bpf, "exec_begins", "syscalls", "sys_enter_execve") ||
	    attach_one(bpf, "execat_begins", "syscalls", "sys_enter_execveat"))
		return ml_bpf_fail("could not follow mappings", errno);
	if ((config->follow || config->whole_machine) && attach_one(bpf, "process_fork", "task", "task_newtask"))
		return ml_bpf_fail("could not follow forks", errno);
	return list(&sites, bpf, config) || place_all(bpf, config, &sites, pid) ? -1 : 0;
}

/* ---- detaching ----------------------------------------------------------------------------------- */

static void *destroy_link(void *link)
{
	bpf_link__destroy(link);
	return NULL;
}

static void *close_link(void *link)
{
	close(*(int *)link);
	return NULL;
}

/* The kernel waits for a grace period at each link, some 100 ms: all links are closed at once. */
void ml_bpf_detach(struct ml_bpf *bpf)
{
	pthread_t threads[2 * ML_MAX_LINKS];
	bool is_started[2 * ML_MAX_LINKS];
	int n = bpf->n_links + bpf->n_multi_links;

	if (bpf->code)
		__atomic_store_n(&bpf->code->is_over, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < n; i++) {
		bool is_multi = i >= bpf->n_links;
		void *(*end)(void *) = is_multi ? close_link : destroy_link;
		void *link = is_multi ? (void *)&bpf->multi_links[i - bpf->n_links] : bpf->links[i];

		is_started[i] = !pthread_create(&threads[i], NULL, end, link);
		if (!is_started[i])
			end(link);
	}
	for (int i = 0; i < n; i++)
		if (is_started[i])
			pthread_join(threads[i], NULL);
	bpf->n_links = bpf->n_multi_links = 0;
}

void ml_bpf_destroy(struct ml_bpf *bpf)
{
	ml_bpf_detach(bpf);
	ring_buffer__free(bpf->ring);
	ml_perf_path_close(bpf->perf_path);
	bpf_object__close(bpf->object);
	free(bpf->oldest_ns);
}
