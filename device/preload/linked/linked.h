/* SPDX-License-Identifier: Apache-2.0 */
/* A session without an agent (include/memleak.h): the segment is the process's own memory. */
#ifndef MEMLEAK_LINKED_H
#define MEMLEAK_LINKED_H

#include "preload/segment/segment.h"

/* Of the session that is to be made without an agent; NULL = the next one is an agent's. */
extern const struct ml_settings *ml_linked_settings __attribute__((visibility("hidden")));

/* What ml_connect_segment() does in its place. 0 or -errno. */
int ml_linked_segment(struct ml_view *view);

#endif
