// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/inject/trampoline.h"

#include <stdlib.h>
#include <string.h>

#include "agent/process/process_maps.h"
#include "agent/ptrace/state.h"
#include "agent/process/target_objects.h"

#define PIECE_BYTES (256u << 10)
#define CODE_BYTES_MAX (16u << 20) /* of one mapping: libc has 2 MiB, programs up to hundreds */

struct search {
	ml_u32 pid;
	ml_u64 within; /* only the mapping of this address; 0 = all */
	struct ml_ptrace_code found;
	ml_u8 *piece;
};

static void match(ml_u64 *found, ml_u64 start, const ml_u8 *piece, size_t bytes, const ml_u8 *wanted, size_t n_wanted)
{
	const ml_u8 *hit = *found || !n_wanted ? NULL : memmem(piece, bytes, wanted, n_wanted);

	if (hit)
		*found = start + (ml_u64)(hit - piece);
}

static bool is_done(const struct ml_ptrace_code *found)
{
	return found->trampoline && (found->keeps_result || !ml_ptrace_n_keeper_bytes);
}

static void search_code(void *context, ml_u64 start, ml_u64 end)
{
	struct search *search = context;
	size_t step = PIECE_BYTES - ml_ptrace_n_trampoline_bytes;

	if (search->within && search->within - start >= end - start)
		return;
	if (end - start > CODE_BYTES_MAX)
		end = start + CODE_BYTES_MAX;
	for (; start < end && !is_done(&search->found); start += step) {
		size_t bytes = end - start < PIECE_BYTES ? (size_t)(end - start) : PIECE_BYTES;

		if (ml_target_read(search->pid, start, search->piece, bytes))
			return;
		match(&search->found.trampoline, start, search->piece, bytes, ml_ptrace_trampoline_bytes,
		     ml_ptrace_n_trampoline_bytes);
		match(&search->found.keeps_result, start, search->piece, bytes, ml_ptrace_keeper_bytes,
		     ml_ptrace_n_keeper_bytes);
	}
}

static ml_u64 find_libc(const struct ml_target_objects *objects)
{
	ml_u64 address = 0;

	for (size_t i = 0; i < objects->n && !address; i++)
		address = ml_target_function(objects->pid, &objects->objects[i], "sigaction");
	return address;
}

struct ml_ptrace_code ml_inject_find_code(const struct ml_target_objects *objects)
{
	struct search search = { .pid = objects->pid, .within = find_libc(objects), .piece = malloc(PIECE_BYTES) };
	size_t bytes;
	char *maps = ml_process_maps_read(objects->pid, &bytes);

	if (search.piece && maps && search.within)
		ml_process_maps_code(maps, search_code, &search);
	search.within = 0;
	if (search.piece && maps && !is_done(&search.found))
		ml_process_maps_code(maps, search_code, &search);
	free(search.piece);
	free(maps);
	return search.found;
}
