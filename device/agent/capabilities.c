// SPDX-License-Identifier: Apache-2.0
#include "capabilities.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/probes/probed_code.h"
#include "agent/probes/tracefs.h"
#include "agent/protocol/version.h"
#include "wire.h"

static bool can_make_map(enum bpf_map_type type, ml_u32 key_bytes, ml_u32 value_bytes, ml_u32 entries, ml_u32 flags)
{
	LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = flags);
	int fd = bpf_map_create(type, NULL, key_bytes, value_bytes, entries, &options);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

static bool can_open_sideband(void)
{
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(attributes), .config = PERF_COUNT_SW_DUMMY, .mmap2 = 1, .mmap = 1
	};
	long fd = syscall(SYS_perf_event_open, &attributes, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0)
		return false;
	close((int)fd);
	return true;
}

static void print_bool(const char *name, bool value)
{
	printf("\"%s\": %s, ", name, value ? "true" : "false");
}

int ml_capabilities_print(void)
{
	libbpf_set_print(NULL);
	printf("{\"agent\": \"%s\", \"wire\": %u, ", ML_AGENT_VERSION, ML_WIRE_VERSION);
	print_bool("bpf_programs", ml_probed_code_has_programs());
	print_bool("bpf", can_make_map(BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0));
	print_bool("bpf_mappable_array", can_make_map(BPF_MAP_TYPE_ARRAY, 4, 8, 1, BPF_F_MMAPABLE));
	print_bool("bpf_ring_buffer", can_make_map(BPF_MAP_TYPE_RINGBUF, 0, 0, 65536, 0));
	print_bool("bpf_uprobe_programs", libbpf_probe_bpf_prog_type(BPF_PROG_TYPE_KPROBE, NULL) > 0);
	print_bool("attach_cookie", libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_get_attach_cookie, NULL) > 0);
	print_bool("uprobe_pmu", access("/sys/bus/event_source/devices/uprobe/type", R_OK) == 0);
	print_bool("kernel_btf", access("/sys/kernel/btf/vmlinux", R_OK) == 0);
	print_bool("sideband", can_open_sideband());
	print_bool("fork_events", ml_tracefs_field("sched/sched_process_fork", "child_pid") > 0);
	print_bool("munmap_events", ml_tracefs_field("syscalls/sys_enter_munmap", "addr") > 0);
	printf("\"page_bytes\": %ld}\n", sysconf(_SC_PAGESIZE));
	return 0;
}
