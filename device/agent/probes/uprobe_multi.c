// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/probes/uprobe_multi.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/process/process_maps.h"

int ml_uprobe_multi_link(int program, const struct ml_uprobe_multi *probes)
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

/* ---- does it work? ------------------------------------------------------------------------------- */

__attribute__((noinline, used)) static void *probed_by_trial(void *argument)
{
	__asm__ volatile("" ::: "memory");
	return argument;
}

/* Offset of an address of the agent in its own file; 0: unknown. */
static ml_u64 own_offset(ml_u64 address)
{
	size_t bytes;
	char *maps = ml_process_maps_read((ml_u32)getpid(), &bytes), permissions[4];
	ml_u64 offset = 0, start, end;

	for (const char *line = maps, *next; line && (next = ml_process_maps_line(line, &start, &end, permissions)); line = next)
		if (address >= start && address < end)
			offset = address - start + strtoull(strchr(strchr(line, ' ') + 1, ' '), NULL, 16);
	free(maps);
	return offset;
}

/* Loads a program that writes 1 into the map's only value. */
static int load_marking(int map)
{
	LIBBPF_OPTS(bpf_prog_load_opts, how, .expected_attach_type = (enum bpf_attach_type)BPF_TRACE_UPROBE_MULTI);
	const struct bpf_insn code[] = {
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_VALUE, .imm = map }, {},
		{ .code = BPF_ST | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_1, .imm = 1 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};

	return bpf_prog_load(BPF_PROG_TYPE_KPROBE, "probe_trial", "GPL", code, sizeof(code) / sizeof(*code), &how);
}

/* A second thread calls: before 6.10 the filter by process lets the first one pass only. */
static bool is_seen(int program, int map)
{
	ml_u64 offset = own_offset((ml_u64)(unsigned long)probed_by_trial), cookie = 0, mark = 0;
	const struct ml_uprobe_multi probe = {
		.path = "/proc/self/exe", .offsets = &offset, .cookies = &cookie, .n = 1, .pid = getpid(),
	};
	int link = offset ? ml_uprobe_multi_link(program, &probe) : -1;
	ml_u32 zero = 0;
	pthread_t thread;

	if (link < 0)
		return false;
	if (!pthread_create(&thread, NULL, probed_by_trial, NULL))
		pthread_join(thread, NULL);
	close(link);
	return !bpf_map_lookup_elem(map, &zero, &mark) && mark;
}

static bool try_link(void)
{
	int map = bpf_map_create(BPF_MAP_TYPE_ARRAY, "probe_trial", sizeof(ml_u32), sizeof(ml_u64), 1, NULL);
	int program = map < 0 ? -1 : load_marking(map);
	bool works = program >= 0 && is_seen(program, map);

	if (program >= 0)
		close(program);
	if (map >= 0)
		close(map);
	return works;
}

bool ml_uprobe_multi_works(void)
{
	static int works = -1;

	if (works < 0)
		works = try_link();
	return works;
}
