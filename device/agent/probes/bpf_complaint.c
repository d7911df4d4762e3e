// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/bpf_complaint.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"

char ml_bpf_complaint[512];

static int keep_warning(enum libbpf_print_level level, const char *format, va_list arguments)
{
	if (getenv("MEMLEAKD_VERBOSE")) { /* the verifier's whole log, for developers */
		va_list again;

		va_copy(again, arguments);
		vfprintf(stderr, format, again);
		va_end(again);
	}
	if (level == LIBBPF_WARN) {
		vsnprintf(ml_bpf_complaint, sizeof(ml_bpf_complaint), format, arguments);
		ml_bpf_complaint[strcspn(ml_bpf_complaint, "\n")] = '\0';
	}
	return 0;
}

void ml_bpf_keep_complaints(void)
{
	libbpf_set_print(keep_warning);
}

int ml_bpf_refuse(const char *what, int error, const char *way_out)
{
	const char *detail = ml_bpf_complaint;

	if (error == EMFILE)
		way_out = "allow more open files: ulimit -n";
	ml_blocks_error(ML_REASON_TRACER_ERROR, "%s: %s%s%s%s (%s)", what, strerror(error), *detail ? " [" : "", detail,
			*detail ? "]" : "", way_out);
	return -1;
}
