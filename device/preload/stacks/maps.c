// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/maps.h"

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/clock.h"
#include "preload/stacks/code_lines.h"
#include "preload/segment/ring.h"
#include "preload/freestanding/syscalls.h"
#include "preload/segment/thread.h"

#define CLUSTER_GAP_PAGES (1u << 14) /* 64 MiB: spans closer than this are one cluster */
#define USER_ADDRESS_END (1ull << 56) /* [vsyscall] is above */
#define PATIENCE_NS 200000000 /* without a page read: the reader is stopped, or the agent is gone */

ml_u64 ml_maps_linker_low, ml_maps_linker_bytes;
struct ml_maps_code ml_maps_allocator, ml_maps_own;

/* ---- reading ------------------------------------------------------------------------------------------ */

struct reader {
	const struct ml_view *view; /* NULL: the text is not sent */
	struct ml_thread *thread;
	ml_u64 timestamp_ns;
	long fd;
	size_t fill;
	size_t start; /* of the next line in the thread's scratch memory */
};

static void send_text(struct reader *reader, const char *text, size_t bytes, ml_u32 last)
{
	struct ml_maps head = { reader->timestamp_ns, reader->view->segment->pid, (ml_u32)bytes };
	char *room = ml_ring_reserve_patiently(reader->view, reader->thread, (ml_u32)(sizeof(head) + bytes));

	if (!room) {
		__atomic_fetch_add(&reader->view->segment->lost[ML_LOST_MAPPINGS], 1, __ATOMIC_RELAXED);
		__atomic_store_n(&reader->view->segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_RELAXED);
		reader->view = NULL; /* an incomplete text is worse than none */
		return;
	}
	ml_copy(room, &head, sizeof(head));
	ml_copy(room + sizeof(head), text, bytes);
	ml_ring_commit(reader->view, reader->thread, ML_RING_MAPS | last << ML_RING_ARGUMENT_SHIFT,
		       (ml_u32)(sizeof(head) + bytes));
}

static ml_u32 n_pages_read; /* shows waiting threads that the reader makes progress */

/* Moves the incomplete last line to the front and appends to it. */
static int refill(struct reader *reader)
{
	char *scratch = reader->thread->scratch;
	size_t rest = reader->fill - reader->start;
	long n;

	if (rest == sizeof(reader->thread->scratch))
		rest = 0; /* a line longer than the buffer, whose beginning was parsed */
	for (size_t i = 0; i < rest; i++)
		scratch[i] = scratch[reader->start + i];
	n = ML_SYSCALL3(read, reader->fd, scratch + rest, sizeof(reader->thread->scratch) - rest);
	__atomic_fetch_add(&n_pages_read, 1, __ATOMIC_RELAXED);
	reader->start = 0;
	reader->fill = rest + (n > 0 ? (size_t)n : 0);
	if (n > 0 && reader->view)
		send_text(reader, scratch + rest, (size_t)n, 0);
	return n > 0;
}

static void parse_line(struct ml_maps_line *line)
{
	const char *text = line->text, *end = line->text + line->length;

	line->low = ml_parse_hex(&text, end);
	text += text < end;
	line->high = ml_parse_hex(&text, end);
	line->is_readable = end - text > 1 && text[1] == 'r';
	line->is_code = end - text > 3 && text[3] == 'x';
}

static int next_line(struct reader *reader, struct ml_maps_line *line)
{
	const char *scratch = reader->thread->scratch;

	for (;;) {
		for (size_t i = reader->start; i < reader->fill; i++) {
			if (scratch[i] != '\n')
				continue;
			*line = (struct ml_maps_line){ .text = scratch + reader->start, .length = i - reader->start };
			reader->start = i + 1;
			parse_line(line);
			return 1;
		}
		if (!refill(reader))
			return 0;
	}
}

static int open_maps(struct reader *reader)
{
	reader->fd = ml_open_maps();
	return reader->fd >= 0;
}

int ml_maps_find(struct ml_thread *thread, ml_u64 address, struct ml_maps_range *found)
{
	struct reader reader = { .thread = thread };
	struct ml_maps_line line;
	int is_found = 0;

	if (!open_maps(&reader))
		return 0;
	while (!is_found && next_line(&reader, &line)) {
		is_found = line.low <= address && address < line.high;
		*found = (struct ml_maps_range){
			line.low,
			line.high,
			line.length > 7 && ml_starts_with(line.text + line.length - 7, "[stack]"),
		};
	}
	ML_SYSCALL1(close, reader.fd);
	return is_found;
}

/* ---- the code map ------------------------------------------------------------------------------------- */

/*
 * A thread that finds the maps dirty waits for the thread that reads them. The wait is bounded: that thread may be
 * stopped or gone.
 */
static enum reading {
	READING_NONE,
	READING,
	READING_UNAWAITED, /* a thread has waited in vain */
} reading;

static struct ml_code_cluster *cluster_for(struct ml_code_map *map, ml_u64 first_page, ml_u32 *used_bits)
{
	struct ml_code_cluster *last = map->n_clusters ? &map->clusters[map->n_clusters - 1] : NULL;

	if (last &&
	    (map->n_clusters == ML_CODE_CLUSTERS || first_page - (last->first_page + last->n_pages) < CLUSTER_GAP_PAGES))
		return last;
	map->clusters[map->n_clusters] = (struct ml_code_cluster){ first_page, 0, *used_bits };
	return &map->clusters[map->n_clusters++];
}

static void add_code(struct ml_code_map *map, const struct ml_maps_line *line, ml_u32 *used_bits)
{
	ml_u64 first = line->low >> ML_CODE_PAGE_SHIFT, end = line->high >> ML_CODE_PAGE_SHIFT;
	struct ml_code_cluster *cluster = cluster_for(map, first, used_bits);
	ml_u64 end_bit = cluster->first_bit + (end - cluster->first_page);

	if (end_bit > ML_CODE_PAGES)
		return; /* too far from the rest: such addresses do not go into keys */
	while (*used_bits < end_bit) {
		ml_u64 page = cluster->first_page + (*used_bits - cluster->first_bit);
		ml_u64 bit = 1ull << (*used_bits % 64);

		if (page >= first)
			map->bits[*used_bits / 64] |= bit;
		else
			map->bits[*used_bits / 64] &= ~bit;
		++*used_bits;
	}
	cluster->n_pages = (ml_u32)(end - cluster->first_page);
}

static void note_linker(const struct ml_maps_line *line)
{
	static const char *const names[] = { "ld-linux", "ld-musl", "/ld-2.", "/linker64", "/linker", "/ld.so" };

	for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
		for (size_t i = 0; i < line->length; i++)
			if (ml_starts_with(line->text + i, names[n]) && i + ml_length(names[n]) <= line->length) {
				ml_write(&ml_maps_linker_low, line->low);
				ml_write(&ml_maps_linker_bytes, line->high - line->low);
				return;
			}
}

static void note_code(struct ml_maps_code *code, const struct ml_maps_line *line)
{
	if (code->address - line->low >= line->high - line->low)
		return;
	code->low = line->low;
	code->bytes = line->high - line->low;
}

/* Returns 0 if there was not one line. */
static int read_code(struct reader *reader, struct ml_code_map *map, ml_u32 which)
{
	struct ml_maps_line line;
	ml_u64 highest = 1;
	ml_u32 used_bits = 0;

	map->n_clusters = 0;
	ml_fill(map->clusters, 0, sizeof(map->clusters));
	ml_code_lines_clear(which);
	while (next_line(reader, &line)) {
		if (line.high <= USER_ADDRESS_END)
			highest |= line.high - 1; /* the kernel's page for uprobes ends at the highest address */
		if (line.high > USER_ADDRESS_END)
			continue;
		ml_code_lines_add(which, &line);
		if (!line.is_code)
			continue;
		add_code(map, &line, &used_bits);
		note_code(&ml_maps_allocator, &line);
		note_code(&ml_maps_own, &line);
		if (!ml_maps_linker_low)
			note_linker(&line);
	}
	/* musl's linker is its libc, so its allocations mean nothing. The agent checks the maps now and then, too. */
	if (ml_maps_linker_low == ml_maps_allocator.low)
		ml_write(&ml_maps_linker_bytes, 0);
	/* The stack is at the top of the address space, so its address has all address bits. */
	map->signature_mask = ~(~0ull >> __builtin_clzll(highest));
	return highest != 1;
}

/* Returns 1 if this thread is to read the maps; 0 if another has done so or takes too long. */
static int begin_reading(ml_u32 *dirty)
{
	struct ml_wait wait = { 0 };
	ml_u32 n_seen = 0;

	for (;;) {
		enum reading expected = READING_NONE;
		ml_u32 n_pages = __atomic_load_n(&n_pages_read, __ATOMIC_RELAXED);
		int is_stuck;

		if (!__atomic_load_n(dirty, __ATOMIC_ACQUIRE))
			return 0;
		if (n_pages != n_seen)
			wait.waited_ns = 0;
		n_seen = n_pages;
		is_stuck = wait.waited_ns >= PATIENCE_NS;
		if (__atomic_compare_exchange_n(&reading, &expected, READING, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			break;
		if (is_stuck) {
			expected = READING;
			__atomic_compare_exchange_n(&reading, &expected, READING_UNAWAITED, 0, __ATOMIC_RELAXED,
						    __ATOMIC_RELAXED);
		}
		if (expected == READING_UNAWAITED || is_stuck)
			return 0;
		ml_wait_on(&wait);
	}
	if (__atomic_load_n(dirty, __ATOMIC_RELAXED))
		return 1;
	__atomic_store_n(&reading, READING_NONE, __ATOMIC_RELEASE);
	return 0;
}

/* The time is taken after every thread can see that the maps are being read, and before they are. */
static void read_anew(const struct ml_view *view, struct ml_thread *thread)
{
	ml_u32 *dirty = &view->segment->maps_dirty, old = view->segment->current_map, new = !old;
	ml_u32 being_read = ML_MAPS_BEING_READ, state = ML_MAPS_CLEAN, was;
	int is_read;
	/* Without an agent the text is not sent; a recording gets the maps of the time when it is written. */
	struct reader reader = { .view = view->settings.flags & ML_SETTING_NO_AGENT ? NULL : view, .thread = thread };

	was = __atomic_exchange_n(dirty, ML_MAPS_BEING_READ, __ATOMIC_SEQ_CST);
	reader.timestamp_ns = ml_tick_after(ml_clock_exact_ns());
	is_read = open_maps(&reader) && read_code(&reader, &view->code_maps[new], new);
	if (reader.fd >= 0)
		ML_SYSCALL1(close, reader.fd);
	if (is_read) {
		if (reader.view)
			send_text(&reader, "", 0, 1);
		view->code_maps[new].timestamp_ns = reader.timestamp_ns;
		view->code_maps[new].generation = view->code_maps[old].generation + (ml_u32)!ml_code_lines_are_kept(old, new);
		view->code_maps[new].revision = view->code_maps[old].revision + 1;
		__atomic_store_n(&view->segment->current_map, new, __ATOMIC_RELEASE);
	} else {
		state = ML_MAPS_UNREAD;
		if (was != ML_MAPS_UNREAD)
			__atomic_fetch_add(&view->segment->lost[ML_LOST_MAPPINGS], 1, __ATOMIC_RELAXED);
	}
	__atomic_compare_exchange_n(dirty, &being_read, state, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
	__atomic_store_n(&reading, READING_NONE, __ATOMIC_RELEASE);
}

void ml_maps_refresh(const struct ml_view *view, struct ml_thread *thread)
{
	if (ml_ring_is_stuck(thread) || !ml_thread_enter(view, thread))
		return;
	if (begin_reading(&view->segment->maps_dirty))
		read_anew(view, thread);
	ml_thread_leave(view, thread);
}

void ml_maps_forget(ml_u32 patience_ms)
{
	ml_u64 deadline_ns = ml_clock_exact_ns() + patience_ms * 1000000ull;
	enum reading expected = READING_NONE;

	while (!__atomic_compare_exchange_n(&reading, &expected, READING, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED) &&
	       ml_clock_exact_ns() < deadline_ns) {
		expected = READING_NONE;
		ml_pause_ns(ML_WAIT_STEP_NS);
	}
	ml_code_lines_forget();
	__atomic_store_n(&reading, READING_NONE, __ATOMIC_RELEASE);
}
