// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/stop_times.h"

#include "agent/protocol/blocks.h"

static struct ml_stop *shortest(struct ml_stop_times *times)
{
	struct ml_stop *found = &times->stops[0];

	for (ml_u32 i = 1; i < times->n; i++)
		if (times->stops[i].duration_ns < found->duration_ns)
			found = &times->stops[i];
	return found;
}

static void add(struct ml_stop_times *times, const struct ml_stop *stop)
{
	struct ml_stop *slot = times->n < ML_STOP_TIMES_MAX ? &times->stops[times->n++] : NULL;

	if (!slot) {
		times->n_dropped++;
		slot = shortest(times);
		if (slot->duration_ns >= stop->duration_ns)
			return;
	}
	*slot = *stop;
}

void ml_stop_times_add(struct ml_stop_times *times, enum ml_stopped stopped, ml_u64 duration_ns, ml_u32 n_threads)
{
	struct ml_stop stop = {
		.timestamp_ns = ml_clock_ns(), .duration_ns = duration_ns, .n_threads = n_threads, .stopped = (ml_u16)stopped
	};

	if (duration_ns)
		add(times, &stop);
}

void ml_stop_times_append(struct ml_stop_times *times, const struct ml_stop_times *more)
{
	for (ml_u32 i = 0; i < more->n; i++)
		add(times, &more->stops[i]);
	times->n_dropped += more->n_dropped;
}

int ml_stop_times_write(struct ml_stop_times *times, ml_u32 pid, enum ml_stop_moment moment)
{
	for (ml_u32 i = 0; i < times->n; i++) {
		times->stops[i].pid = pid;
		times->stops[i].moment = (ml_u16)moment;
	}
	if (times->n_dropped)
		ml_blocks_log("process %u was stopped %u times more, each for less time than the %u stops in the recording",
			      pid, times->n_dropped, times->n);
	return times->n ? ml_blocks_write(ML_BLOCK_STOPS, times->stops, times->n * sizeof(times->stops[0])) : 0;
}
