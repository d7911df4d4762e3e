// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/libbpf.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/process/resource_limits.h"
#include "agent/protocol/blocks.h"

char ml_libbpf_warning[512];

static int keep_warning(enum libbpf_print_level level, const char *format, va_list arguments)
{
	if (getenv("MEMLEAKD_VERBOSE")) { /* the verifier's whole log, for developers */
		va_list again;

		va_copy(again, arguments);
		vfprintf(stderr, format, again);
		va_end(again);
	}
	if (level == LIBBPF_WARN) {
		vsnprintf(ml_libbpf_warning, sizeof(ml_libbpf_warning), format, arguments);
		ml_libbpf_warning[strcspn(ml_libbpf_warning, "\n")] = '\0';
	}
	return 0;
}

void ml_libbpf_begin(ml_u32 max_files)
{
	libbpf_set_print(keep_warning);
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	ml_limits_raise_memlock();
	ml_limits_raise_descriptors(max_files);
}

void *ml_libbpf_map(const struct bpf_object *object, const char *name, size_t bytes)
{
	int fd = bpf_object__find_map_fd_by_name(object, name);
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

ml_u64 ml_libbpf_counter(int map_fd, int n_cpus, ml_u32 which)
{
	ml_u64 *rows = calloc((size_t)n_cpus, sizeof(*rows));
	ml_u64 sum = 0;

	if (rows && !bpf_map_lookup_elem(map_fd, &which, rows))
		for (int i = 0; i < n_cpus; i++)
			sum += rows[i];
	free(rows);
	return sum;
}

int ml_libbpf_member(const struct btf *btf, const char *structure, const char *name)
{
	int id = btf__find_by_name_kind(btf, structure, BTF_KIND_STRUCT);
	const struct btf_type *type = id < 0 ? NULL : btf__type_by_id(btf, (ml_u32)id);

	for (ml_u32 i = 0; type && i < btf_vlen(type); i++)
		if (!strcmp(btf__name_by_offset(btf, btf_members(type)[i].name_off), name))
			return (int)btf_member_bit_offset(type, i) / 8;
	return -1;
}

int ml_libbpf_fail(const char *what, int error, const char *way_out)
{
	const char *detail = ml_libbpf_warning;

	if (error == EMFILE)
		way_out = "allow more open files: ulimit -n";
	return ml_blocks_error(ML_REASON_TRACER_ERROR, "%s: %s%s%s%s (%s)", what, strerror(error), *detail ? " [" : "", detail,
			       *detail ? "]" : "", way_out);
}
