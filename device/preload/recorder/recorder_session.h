/* SPDX-License-Identifier: Apache-2.0 */
/* The view that the recorder writes to, for the recorder itself. */
#ifndef MEMLEAK_RECORDER_SESSION_H
#define MEMLEAK_RECORDER_SESSION_H

#include "preload/segment/segment.h"

extern struct ml_view *ml_recorder_view_in_force __attribute__((visibility("hidden")));

/* To be asked once in a call, after the state was read: another session has another. */
static inline const struct ml_view *ml_view_in_force(void)
{
	return __atomic_load_n(&ml_recorder_view_in_force, __ATOMIC_ACQUIRE);
}

/* Ends the session when the agent is gone: one that was killed leaves nobody to do it. To be called now and then. */
void ml_recorder_look_for_agent(const struct ml_view *view, ml_u64 now_ns);

#endif
