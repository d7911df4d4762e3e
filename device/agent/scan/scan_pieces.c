// SPDX-License-Identifier: Apache-2.0
/* Source: proc(5), /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst: bit 63 in memory, bit 62 in swap). */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include "agent/scan/scan_pieces.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define USED (3ull << 62)
#define ENTRIES 4096u
#define ROOM_AT_FIRST 1024u

void ml_scan_pieces_begin(struct ml_scan_pieces *pieces, int pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	pieces->pagemap = open(path, O_RDONLY | O_CLOEXEC);
	pieces->n = 0;
	pieces->has_failed = false;
}

static bool has_room(struct ml_scan_pieces *pieces)
{
	size_t room = pieces->room ? pieces->room * 2 : ROOM_AT_FIRST;
	struct ml_scan_piece *more;

	if (pieces->n < pieces->room)
		return true;
	more = realloc(pieces->all, room * sizeof(*more));
	if (!more)
		return false;
	pieces->all = more;
	pieces->room = room;
	return true;
}

static void add_run(struct ml_scan_pieces *pieces, ml_u64 start, ml_u64 end)
{
	while (start < end) {
		ml_u64 bytes = end - start < ML_SCAN_PIECE_BYTES ? end - start : ML_SCAN_PIECE_BYTES;

		if (!has_room(pieces)) {
			pieces->has_failed = true;
			return;
		}
		pieces->all[pieces->n++] = (struct ml_scan_piece){ start, bytes };
		start += bytes;
	}
}

void ml_scan_pieces_add(struct ml_scan_pieces *pieces, ml_u64 start, ml_u64 end)
{
	static ml_u64 entries[ENTRIES];
	ml_u64 page_bytes = (ml_u64)sysconf(_SC_PAGESIZE), run = 0, at = start;

	while (at < end) {
		ml_u64 page = at / page_bytes;
		ssize_t got = pieces->pagemap < 0 ? -1 : pread64(pieces->pagemap, entries, sizeof(entries), (off64_t)(page * 8));

		if (got < 8) {
			add_run(pieces, run ? run : at, end);
			return;
		}
		for (size_t i = 0; i < (size_t)got / 8 && at < end; i++, at = (page + i) * page_bytes) {
			if (entries[i] & USED) {
				run = run ? run : at;
			} else if (run) {
				add_run(pieces, run, at);
				run = 0;
			}
		}
	}
	if (run)
		add_run(pieces, run, end);
}

int ml_scan_pieces_end(struct ml_scan_pieces *pieces)
{
	if (pieces->pagemap >= 0)
		close(pieces->pagemap);
	return pieces->has_failed ? -1 : 0;
}
