// SPDX-License-Identifier: Apache-2.0
#include "capabilities.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/probes/probed_code.h"
#include "agent/probes/tracefs.h"
#include "agent/protocol/version.h"
#include "wire.h"

static void print_bool(const char *name, bool value)
{
	printf("\"%s\": %s, ", name, value ? "true" : "false");
}

/* Members of "errors", by the names of what does not work. */
static char errors[1024];

/* fd: of what was tried. Negative: it failed, and errno says why. */
static void print_tried(const char *name, long fd)
{
	size_t n = strlen(errors);

	printf("\"%s\": %s, ", name, fd < 0 ? "false" : "true");
	if (fd >= 0)
		close((int)fd);
	else
		snprintf(errors + n, sizeof(errors) - n, "%s\"%s\": \"%s\"", n ? ", " : "", name, strerror(errno));
}

static int make_map(enum bpf_map_type type, ml_u32 key_bytes, ml_u32 value_bytes, ml_u32 entries, ml_u32 flags)
{
	LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = flags);

	return bpf_map_create(type, NULL, key_bytes, value_bytes, entries, &options);
}

static int load_program(void)
{
	const struct bpf_insn return_0[] = { { .code = BPF_ALU64 | BPF_MOV | BPF_K }, { .code = BPF_JMP | BPF_EXIT } };

	return bpf_prog_load(BPF_PROG_TYPE_KPROBE, NULL, "GPL", return_0, 2, NULL);
}

/* Disabled, on the agent's own ELF header: the kernel checks it but inserts nothing. */
static long open_uprobe(void)
{
	struct perf_event_attr attributes = { .size = sizeof(attributes),
					      .disabled = 1,
					      .uprobe_path = (ml_u64)(size_t)"/proc/self/exe" };
	FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "re");
	bool is_there = type && fscanf(type, "%u", &attributes.type) == 1;

	if (type)
		fclose(type);
	if (is_there)
		return syscall(SYS_perf_event_open, &attributes, getpid(), -1, -1, PERF_FLAG_FD_CLOEXEC);
	errno = ENODEV;
	return -1;
}

static long open_sideband(void)
{
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(attributes), .config = PERF_COUNT_SW_DUMMY, .mmap2 = 1, .mmap = 1
	};

	return syscall(SYS_perf_event_open, &attributes, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
}

static void print_helper(const char *name, enum bpf_func_id helper)
{
	print_bool(name, libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, helper, NULL) > 0);
}

int ml_capabilities_print(void)
{
	libbpf_set_print(NULL);
	printf("{\"agent\": \"%s\", \"wire\": %u, ", ML_AGENT_VERSION, ML_WIRE_VERSION);
	print_bool("bpf_programs", ml_probed_code_has_programs());
	print_tried("bpf", make_map(BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0));
	print_tried("bpf_mappable_array", make_map(BPF_MAP_TYPE_ARRAY, 4, 8, 1, BPF_F_MMAPABLE));
	print_tried("bpf_ring_buffer", make_map(BPF_MAP_TYPE_RINGBUF, 0, 0, 65536, 0));
	print_tried("bpf_uprobe_programs", load_program());
	print_helper("attach_cookie", BPF_FUNC_get_attach_cookie);
	print_helper("read_user_memory", BPF_FUNC_probe_read_user);
	print_tried("uprobe_pmu", open_uprobe());
	print_bool("kernel_btf", access("/sys/kernel/btf/vmlinux", R_OK) == 0);
	print_tried("sideband", open_sideband());
	print_bool("fork_events", ml_tracefs_field("sched/sched_process_fork", "child_pid") > 0);
	print_bool("munmap_events", ml_tracefs_field("syscalls/sys_enter_munmap", "addr") > 0);
	printf("\"errors\": {%s}, \"page_bytes\": %ld}\n", errors, sysconf(_SC_PAGESIZE));
	return 0;
}
