// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/hooked.h"

#include "agent/protocol/blocks.h"

#define ROWS 64u /* of a block */

int ml_preload_hooked_write(struct ml_preload_target *target)
{
	struct ml_segment *segment = target->view.segment;
	ml_u32 n = __atomic_load_n(&segment->n_hooked, __ATOMIC_ACQUIRE);
	struct ml_hooked rows[ROWS];

	__atomic_store_n(&segment->agent_alive_ns, ml_clock_ns(), __ATOMIC_RELAXED);
	if (n > ML_HOOKED_MAX)
		n = ML_HOOKED_MAX;
	while (target->n_hooked < n) {
		ml_u32 count = 0;

		for (; count < ROWS && target->n_hooked < n; count++) {
			rows[count] = target->view.hooked[target->n_hooked++];
			rows[count].pid = target->pid;
		}
		if (ml_blocks_write(ML_BLOCK_HOOKED, rows, count * sizeof(rows[0])))
			return -1;
	}
	if (segment->n_hooked_lost && !target->is_hooked_lost_reported) {
		target->is_hooked_lost_reported = true;
		ml_blocks_log("pid %u loads too many modules: the state of some is not reported",
			      target->pid);
	}
	return 0;
}
