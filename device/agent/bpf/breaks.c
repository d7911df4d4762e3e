// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/breaks.h"

#include "bpf/session.h"

bool ml_breaks_move(struct ml_breaks *breaks, struct ml_event *event)
{
	ml_u64 now = event->address, before = 0;
	ml_u32 slot = event->pid % ML_BREAKS;

	if (breaks->rows[slot].pid == event->pid)
		before = breaks->rows[slot].address;
	breaks->rows[slot].pid = event->pid;
	breaks->rows[slot].address = now;
	if (event->old_address == ML_BREAK_IS_NO_REGION || !before || now == before)
		return false;
	event->address = now < before ? now : before;
	event->size = now < before ? before - now : now - before;
	if (now < before)
		event->function = ML_FN_MUNMAP;
	return true;
}
