// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/stack_ends.h"

#include <bpf/bpf.h>
#include <stdlib.h>

#include "agent/process/process_maps.h"

void ml_stack_ends_teach(struct ml_stack_ends *ends, const struct ml_evidence *record)
{
	ml_u32 *slot = &ends->taught[record->tid % ML_STACK_ENDS_SLOTS];
	size_t bytes;
	char *text;
	ml_u64 end;

	if (record->flags & ML_EVIDENCE_STACK_WHOLE || *slot == record->tid)
		return;
	*slot = record->tid;
	text = ml_process_maps_read(record->pid, &bytes);
	end = text ? ml_process_maps_end(text, record->stack_address) : 0;
	free(text);
	if (end)
		bpf_map_update_elem(ends->fd, &record->tid, &end, BPF_ANY);
}
