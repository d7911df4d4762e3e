// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/probes/libbpf.h"
#include "agent/bpf/programs.h"
#include "agent/process/thread_states.h"

/*
 * A probe acts from the moment it is placed. The order is: functions that release blocks, that move them, that make them. In any other
 * order a block could be counted whose free is not seen yet, and be held for ever.
 */
enum { TURN_RELEASE, TURN_MOVE, TURN_MAKE, TURNS };

#define SITES_MAX (2 * ML_MAX_PROBES + ML_MAX_EXITS)

/* One side of a probe: at the function's entry, at its return, or at an instruction that leaves it. */
struct site {
	const struct ml_probe *probe;
	bool at_return; /* by the kernel's trampoline */
	struct bpf_program *program;
	ml_u64 offset, cookie;
};

struct sites {
	size_t n;
	struct site all[SITES_MAX];
};

static int turn_of(const struct ml_config *config, const struct ml_probe *probe)
{
	if (config->rules[probe->function].old)
		return TURN_MOVE;
	return probe->has_return ? TURN_MAKE : TURN_RELEASE;
}

static int add(struct sites *sites, const struct ml_bpf *bpf, const struct ml_config *config, struct site wanted, bool at_end)
{
	struct site *site = &sites->all[sites->n++];
	const struct ml_probe *probe = wanted.probe;
	char name[64];

	*site = wanted;
	ml_bpf_entry_program(config, probe, bpf->is_old, name, sizeof(name));
	if (!bpf->is_old) /* without a cookie, kernels that have none can place the probe */
		site->cookie = probe->function | (ml_u64)ml_bpf_file(config, probe) << ML_BPF_FILE_SHIFT;
	if (at_end)
		snprintf(name, sizeof(name), "%s", ml_bpf_return_program(config, probe));
	if (config->empty_probes)
		strcpy(name, site->at_return ? "empty_return" : "empty_entry");
	site->program = bpf_object__find_program_by_name(bpf->object, name);
	if (site->program)
		return 0;
	return ml_blocks_error(ML_REASON_USAGE_ERROR, "no BPF program for %s", name);
}

/* The return probe of a function, or a probe at each of its exits. */
static int add_ends(struct sites *sites, const struct ml_bpf *bpf, const struct ml_config *config, int i)
{
	const struct ml_probe *probe = &config->probes[i];

	for (int j = 0; j < config->n_exits; j++)
		if (config->exits[j].probe == i &&
		    add(sites, bpf, config, (struct site){ .probe = probe, .offset = config->exits[j].offset }, true))
			return -1;
	if (config->rules[probe->function].has_exits || !probe->has_return)
		return 0;
	return add(sites, bpf, config, (struct site){ .probe = probe, .at_return = true, .offset = probe->return_offset },
		   true);
}

/* Lists sites in the order of placing. Returns come before entries: an entry without its return would be counted as missed. */
static int list(struct sites *sites, const struct ml_bpf *bpf, const struct ml_config *config)
{
	sites->n = 0;
	for (int turn = 0; turn < TURNS; turn++) {
		for (int i = 0; i < config->n_probes; i++)
			if (turn_of(config, &config->probes[i]) == turn && add_ends(sites, bpf, config, i))
				return -1;
		for (int i = 0; i < config->n_probes; i++) {
			const struct ml_probe *probe = &config->probes[i];

			if (turn_of(config, probe) == turn &&
			    add(sites, bpf, config, (struct site){ .probe = probe, .offset = probe->entry_offset }, false))
				return -1;
		}
	}
	return 0;
}

/* ---- placing ------------------------------------------------------------------------------------- */

static int refuse(const struct ml_config *config, const struct site *site, int pid, int error)
{
	if (pid > 0 && ml_process_has_ended((ml_u32)pid, -1))
		return ml_blocks_error(ML_REASON_TARGET_ERROR, "pid %d ended while it was being attached to", pid);
	snprintf(ml_libbpf_warning, sizeof(ml_libbpf_warning), "%s+0x%llx in %s", bpf_program__name(site->program),
		 (unsigned long long)site->offset, config->files[site->probe->file].path);
	return ml_bpf_fail("could not place a probe", error);
}

static bool go_together(const struct site *one, const struct site *other)
{
	return one->program == other->program && one->at_return == other->at_return && one->probe->file == other->probe->file;
}

/* Places together all sites of one turn, side, program and file, wherever they are in the list. */
static int place_all(struct ml_bpf *bpf, const struct ml_config *config, const struct sites *sites, int pid)
{
	bool is_placed[SITES_MAX] = { false };

	for (size_t i = 0; i < sites->n; i++) {
		const struct site *first = &sites->all[i], *together[SITES_MAX];
		ml_u64 offsets[SITES_MAX], cookies[SITES_MAX];
		ml_s32 errors[SITES_MAX] = { 0 };
		struct ml_uprobe_multi probes = { .path = config->files[first->probe->file].by_descriptor,
						  .offsets = offsets,
						  .cookies = cookies,
						  .pid = pid,
						  .at_return = first->at_return };

		for (size_t j = i; j < sites->n && turn_of(config, sites->all[j].probe) == turn_of(config, first->probe); j++) {
			if (is_placed[j] || !go_together(first, &sites->all[j]))
				continue;
			is_placed[j] = true;
			together[probes.n] = &sites->all[j];
			offsets[probes.n] = sites->all[j].offset;
			cookies[probes.n++] = sites->all[j].cookie;
		}
		ml_links_place(&bpf->links, first->program, &probes, bpf->has_multi, errors);
		for (ml_u32 j = 0; j < probes.n; j++)
			if (errors[j])
				return refuse(config, together[j], pid, errors[j]);
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
	if (!ml_links_keep(&bpf->links, link))
		return 0;
	ml_blocks_log("could not attach to %s: %s", event, strerror(errno));
	return -1;
}

/* Kernels need not have System V's shared memory (CONFIG_SYSVIPC): Android's do not. What releases comes before what acquires. */
static const struct {
	const char *event;
	bool is_needed;
} region_calls[] = { { "sys_exit_munmap", true }, { "sys_exit_shmdt", false }, { "sys_exit_mremap", true },
		     { "sys_exit_mmap", true },   { "sys_exit_shmat", false }, { "sys_exit_brk", true } };

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
	if (attach_one(bpf, "process_fork", "task", "task_newtask") && (config->follow || config->whole_machine))
		return ml_bpf_fail("could not follow forks", errno);
	for (size_t i = 0; i < sizeof(region_calls) / sizeof(region_calls[0]); i++)
		if (attach_one(bpf, "region_changed", "syscalls", region_calls[i].event) && region_calls[i].is_needed)
			return ml_bpf_fail("could not follow mappings", errno);
	return list(&sites, bpf, config) || place_all(bpf, config, &sites, pid) ? -1 : 0;
}

/* ---- detaching ----------------------------------------------------------------------------------- */

void ml_bpf_detach(struct ml_bpf *bpf)
{
	if (bpf->code)
		__atomic_store_n(&bpf->code->over_ns, ml_clock_ns(), __ATOMIC_SEQ_CST);
	ml_links_close(&bpf->links);
}

void ml_bpf_destroy(struct ml_bpf *bpf)
{
	ml_bpf_detach(bpf);
	ring_buffer__free(bpf->ring);
	ml_perf_path_close(bpf->perf_path);
	bpf_object__close(bpf->object);
}
