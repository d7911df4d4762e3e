// SPDX-License-Identifier: Apache-2.0
#include "agent/process/descendants.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/process/proc_file.h"
#include "agent/process/thread_states.h"

#define TEXT_MAX (1u << 16)

struct search {
	ml_u32 pids[1 + ML_DESCENDANTS_MAX]; /* the first is the ancestor */
	size_t n, at;
	enum ml_descendants result;
	char text[TEXT_MAX];
};

static bool has(const struct search *search, ml_u32 pid)
{
	for (size_t i = 0; i < search->n; i++)
		if (search->pids[i] == pid)
			return true;
	return false;
}

static bool read_children_of_thread(void *context, int tid)
{
	struct search *search = context;
	char name[40], *at = search->text, *end;
	ssize_t n;

	snprintf(name, sizeof(name), "task/%d/children", tid);
	n = ml_proc_read((pid_t)search->pids[search->at], name, search->text, TEXT_MAX);
	/* Other threads may have ended meanwhile. */
	if (n < 0 && errno == ENOENT && tid == (int)search->pids[0] && !ml_process_is_ending(search->pids[0]))
		search->result = ML_DESCENDANTS_UNKNOWN;
	if (n == TEXT_MAX - 1)
		search->result = ML_DESCENDANTS_MORE;
	for (unsigned long pid; n > 0 && (pid = strtoul(at, &end, 10)) && end != at; at = end) {
		if (has(search, (ml_u32)pid))
			continue;
		if (search->n == sizeof(search->pids) / sizeof(*search->pids)) {
			search->result = ML_DESCENDANTS_MORE;
			break;
		}
		search->pids[search->n++] = (ml_u32)pid;
	}
	return false;
}

enum ml_descendants ml_descendants_each(pid_t pid, void (*use)(void *context, ml_u32 pid), void *context)
{
	struct search *search = calloc(1, sizeof(*search));
	enum ml_descendants result;

	if (!search)
		return ML_DESCENDANTS_MORE;
	search->pids[search->n++] = (ml_u32)pid;
	for (; search->at < search->n; search->at++) {
		if (search->at)
			use(context, search->pids[search->at]);
		ml_proc_find((pid_t)search->pids[search->at], "task", read_children_of_thread, search);
	}
	result = search->result;
	free(search);
	return result;
}
