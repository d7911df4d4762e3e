// SPDX-License-Identifier: Apache-2.0
/* Reads records from the rings. Everything there is checked: the target may be broken or hostile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/evidence/bounds.h"
#include "agent/shim/target.h"
#include "agent/process/process_maps.h"
#include "preload/segment/ring.h"

#define TEXT_ROOM_MAX (16u << 20) /* twice a text of 65,530 lines (vm.max_map_count) */
#define ALL_BYTES_MAX (64u << 20) /* limit, whatever a target sends */
#define HOOKED_ROWS 64u /* of a block */

struct ring {
	const unsigned char *data;
	ml_u64 head;  /* read once: a target that goes on writing is left at the end of what was there */
	ml_u32 bytes; /* size of the ring */
};

struct piece {
	ml_u32 kind; /* enum ml_ring_kind */
	ml_u32 argument;
	ml_u32 bytes;
	const void *payload;
};

enum next { NEXT_RECORD, NEXT_NONE, NEXT_BROKEN };

static enum next next_piece(const struct ring *ring, ml_u64 *position, struct piece *piece)
{
	while (*position != ring->head) {
		ml_u32 offset = (ml_u32)(*position & (ring->bytes - 1));
		struct ml_ring_record record;

		memcpy(&record, ring->data + offset, sizeof(record)); /* copied once: the target may change it */
		if (ring->head - *position > ring->bytes || record.bytes < sizeof(record) || record.bytes % 8 ||
		    record.bytes > ring->head - *position || record.bytes > ring->bytes - offset)
			return NEXT_BROKEN;
		*position += record.bytes;
		*piece = (struct piece){
			.kind = record.kind & ((1u << ML_RING_ARGUMENT_SHIFT) - 1),
			.argument = record.kind >> ML_RING_ARGUMENT_SHIFT,
			.bytes = record.bytes - (ml_u32)sizeof(record),
			.payload = ring->data + offset + sizeof(record),
		};
		if (piece->kind != ML_RING_PAD)
			return NEXT_RECORD;
	}
	return NEXT_NONE;
}

static void drop(struct ml_maps_texts *texts, struct ml_maps_text *text)
{
	texts->room -= text->room;
	free(text->text);
	*text = (struct ml_maps_text){ 0 };
}

/* 0, or -1: no room. */
static int extend(struct ml_maps_texts *texts, struct ml_maps_text *text, const void *piece, size_t bytes)
{
	size_t room = 2 * (text->bytes + bytes);
	char *longer;

	if (text->bytes + bytes > text->room) {
		if (room > TEXT_ROOM_MAX || texts->room + room - text->room > ALL_BYTES_MAX)
			return -1;
		longer = realloc(text->text, room);
		if (!longer)
			return -1;
		texts->room += room - text->room;
		text->text = longer;
		text->room = room;
	}
	if (bytes)
		memcpy(text->text + text->bytes, piece, bytes);
	text->bytes += bytes;
	return 0;
}

/*
 * Adds the next piece of a ring. A complete text is written as a block; one with a hole counts as ML_LOST_MAPPINGS; the next text
 * replaces an unfinished one.
 */
static void add_text(struct ml_preload_target *target, ml_u32 ring, const struct ml_maps *head, const void *piece, bool is_last)
{
	struct ml_maps_texts *texts = &target->maps;
	const struct ml_view *view = &target->view;
	struct ml_maps_text *text;

	if (!texts->by_ring)
		texts->by_ring = calloc(view->settings.n_threads, sizeof(*texts->by_ring));
	if (!texts->by_ring) {
		__atomic_fetch_add(&view->segment->lost[ML_LOST_MAPPINGS], (ml_u64)is_last, __ATOMIC_RELAXED);
		return;
	}
	text = &texts->by_ring[ring];
	if (text->timestamp_ns != head->timestamp_ns)
		drop(texts, text);
	text->timestamp_ns = head->timestamp_ns;
	text->is_holed |= extend(texts, text, piece, head->text_bytes) != 0;
	if (!is_last)
		return;
	if (text->is_holed)
		__atomic_fetch_add(&view->segment->lost[ML_LOST_MAPPINGS], 1, __ATOMIC_RELAXED);
	else
		ml_process_maps_write(target->pid, text->timestamp_ns, text->text, text->bytes);
	drop(texts, text);
}

void ml_preload_target_drop_maps(struct ml_preload_target *target)
{
	struct ml_maps_texts *texts = &target->maps;

	for (ml_u32 ring = 0; texts->by_ring && ring < target->view.settings.n_threads; ring++)
		drop(texts, &texts->by_ring[ring]);
	free(texts->by_ring);
}

/* ---- records ------------------------------------------------------------------------------------------ */

static void take_maps(struct ml_preload_target *target, ml_u32 slot, const struct piece *piece)
{
	struct ml_maps head;

	if (piece->bytes < sizeof(head))
		return;
	memcpy(&head, piece->payload, sizeof(head));
	if (head.text_bytes > piece->bytes - sizeof(head))
		return;
	add_text(target, slot, &head, (const char *)piece->payload + sizeof(head), piece->argument != 0);
}

static void take_evidence(struct ml_preload_target *target, const struct piece *piece, const struct ml_preload_sink *sink)
{
	static struct {
		struct ml_ring_evidence head;
		unsigned char rest[ML_STACK_BYTES_MAX + 512 + sizeof(struct ml_frame_chain) + 8 * ML_FRAME_CHAIN_MAX +
				   ML_STACK_ABOVE_ROOM + sizeof(struct ml_python_frames) +
				   ML_PYTHON_FRAMES_MAX * sizeof(struct ml_python_frame)];
	} copy; /* copied once, before the checks */
	struct ml_evidence *record = &copy.head.record;
	ml_u64 bytes = piece->bytes < sizeof(copy) ? piece->bytes : sizeof(copy);

	if (bytes < sizeof(copy.head))
		return;
	target->evidence_records++;
	memcpy(&copy.head, piece->payload, sizeof(copy.head));
	/* Per program: forked siblings share keys, but evidence of one says nothing about the mappings of another. */
	if (!sink->is_wanted(sink->context, record->key, copy.head.stack_hash ^ (ml_u64)target->index << 32))
		return;
	memcpy(copy.rest, (const char *)piece->payload + sizeof(copy.head), bytes - sizeof(copy.head));
	bytes -= offsetof(struct ml_ring_evidence, record);
	if (!ml_evidence_is_sound(record, bytes))
		return;
	record->record_bytes = (ml_u32)bytes;
	record->pid = target->pid;
	record->sequence = ml_preload_target_sequence(target, record->sequence);
	sink->on_evidence(sink->context, record);
}

static void take_python_code(const struct ml_preload_target *target, const struct piece *piece)
{
	ml_u64 copy[(sizeof(struct ml_python_code) + 2 * ML_PYTHON_TEXT_MAX + ML_PYTHON_TABLE_MAX) / 8 + 1];
	struct ml_python_code *record = (void *)copy;
	ml_u64 needed;

	if (piece->bytes < sizeof(*record) || piece->bytes > sizeof(copy))
		return;
	memcpy(copy, piece->payload, piece->bytes);
	needed = sizeof(*record) + record->function_bytes + record->file_bytes + record->table_bytes;
	if (needed > piece->bytes)
		return;
	record->record_bytes = piece->bytes;
	record->pid = target->pid;
	ml_blocks_write(ML_BLOCK_PYTHON_CODE, copy, piece->bytes);
}

static void take_event(const struct ml_preload_target *target, const struct piece *piece, const struct ml_preload_sink *sink)
{
	struct ml_event event;

	if (piece->bytes < sizeof(event))
		return;
	memcpy(&event, piece->payload, sizeof(event));
	event.pid = target->pid;
	sink->on_event(sink->context, &event);
}

static size_t drain_ring(struct ml_preload_target *target, ml_u32 slot, const struct ml_preload_sink *sink)
{
	struct ml_thread *thread = &target->view.threads[slot];
	struct ring ring = { ml_view_ring(&target->view, slot), __atomic_load_n(&thread->head, __ATOMIC_ACQUIRE),
			     ml_view_ring_bytes(&target->view, slot) };
	ml_u64 position = target->tails[slot];
	enum next next;
	size_t bytes = 0;
	struct piece piece;

	while ((next = next_piece(&ring, &position, &piece)) == NEXT_RECORD) {
		if (piece.kind == ML_RING_MAPS)
			take_maps(target, slot, &piece);
		else if (piece.kind == ML_RING_EVIDENCE)
			take_evidence(target, &piece, sink);
		else if (piece.kind == ML_RING_EVENT)
			take_event(target, &piece, sink);
		else if (piece.kind == ML_RING_PYTHON_CODE)
			take_python_code(target, &piece);
		bytes += piece.bytes;
		__atomic_store_n(&thread->tail, position, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&thread->tail, position, __ATOMIC_RELEASE);
	target->tails[slot] = position;
	if (next == NEXT_BROKEN) {
		target->broken_rings |= 1ull << slot % 64;
		ml_blocks_gap(ML_GAP_RECORD, "pid %u corrupted its recording ring %u; further evidence from it is lost",
			      target->pid, slot);
	}
	return bytes;
}

size_t ml_preload_target_drain(struct ml_preload_target *target, const struct ml_preload_sink *sink)
{
	size_t bytes = 0;

	for (ml_u32 slot = 0; slot < target->view.settings.n_threads; slot++)
		if (__atomic_load_n(&target->view.owners[slot], __ATOMIC_ACQUIRE) && !(target->broken_rings >> slot % 64 & 1))
			bytes += drain_ring(target, slot, sink);
	return bytes;
}

bool ml_preload_target_maps_unread(const struct ml_preload_target *target)
{
	return __atomic_load_n(&target->view.segment->maps_dirty, __ATOMIC_RELAXED) == ML_MAPS_UNREAD;
}

void ml_preload_target_watch_maps(struct ml_preload_target *target)
{
	ml_u64 hash = 1, since_ns = target->maps_watched_ns;
	size_t bytes;
	struct ml_maps_line line;
	char *text;

	target->maps_watched_ns = ml_clock_ns();
	text = target->is_gone ? NULL : ml_process_maps_read(target->pid, &bytes);
	if (!text)
		return;
	/* An exec that no hook has seen. The maps of a process that is ending break off, before the stack, which is above the segment. */
	if (!strstr(text, "/memfd:" ML_SEGMENT_NAME) && strstr(text, "[stack]") &&
	    __atomic_load_n(&target->view.segment->is_over, __ATOMIC_SEQ_CST) == ML_SESSION_RUNS)
		__atomic_store_n(&target->view.segment->n_leaving, 1, __ATOMIC_SEQ_CST);
	for (const char *at = text; (at = ml_process_maps_code(at, &line));) {
		hash = (hash ^ line.start) * 0x9e3779b97f4a7c15ull;
		hash = (hash ^ hash >> 29 ^ line.end) * 0x9e3779b97f4a7c15ull;
	}
	if (target->code_hash && target->code_hash != hash)
		__atomic_store_n(&target->view.segment->maps_dirty, ML_MAPS_DIRTY, __ATOMIC_RELAXED);
	target->code_hash = hash;
	/* A program that sees no /proc any more (chroot, a sandbox): what is read here was so from the last reading on. */
	if (ml_preload_target_maps_unread(target) && target->code_hash_written != hash) {
		ml_process_maps_write(target->pid, since_ns, text, bytes);
		target->code_hash_written = hash;
	}
	free(text);
}

/* ---- modules ------------------------------------------------------------------------------------------ */

/* Names the system calls that the shim leaves out since the process went into a sandbox. */
static void log_sandbox(struct ml_preload_target *target)
{
	static const char *const names[] = {
#define NAME(name) " " #name,
		ML_OWN_CALLS_EACH(NAME)
	};
	ml_u64 forbidden = __atomic_load_n(&target->view.segment->forbidden_calls, __ATOMIC_RELAXED);
	char text[512] = "";

	if (!forbidden || target->is_sandbox_logged)
		return;
	target->is_sandbox_logged = true;
	for (size_t i = 0, length = 0; i < ML_OWN_CALLS; i++)
		if (forbidden >> i & 1)
			length += (size_t)snprintf(text + length, sizeof(text) - length, "%s", names[i]);
	ml_blocks_log("pid %u went into a sandbox (seccomp), where the shim makes no use of%s", target->pid, text);
}

static void log_python(struct ml_preload_target *target)
{
	ml_u64 objects = __atomic_load_n(&target->view.segment->python_objects, __ATOMIC_RELAXED);

	if (!objects || target->is_python_logged)
		return;
	target->is_python_logged = true;
	if (objects == ML_PYTHON_OBJECTS_COUNTED)
		ml_blocks_log(
			"pid %u: Python's objects are counted, by its own allocators (--no-python-objects leaves them out)",
			target->pid);
	else
		ml_blocks_gap(ML_GAP_PROGRAMS_LEFT_OUT,
			      "pid %u: the objects of free-threaded Python are not counted: its allocators must not be wrapped",
			      target->pid);
}

static void log_sharing(struct ml_preload_target *target)
{
	if (target->is_sharing_logged || !__atomic_load_n(&target->view.segment->n_sharing, __ATOMIC_RELAXED))
		return;
	target->is_sharing_logged = true;
	ml_blocks_log("pid %u had more than %u threads at a time: the blocks of the others are counted, but may have no stack",
		      target->pid, target->view.settings.n_threads - 1);
}

static void log_unseen_loads(struct ml_preload_target *target)
{
	const struct ml_unseen_loads *loads = &target->view.segment->loads;
	ml_u32 kinds = __atomic_load_n(&loads->kinds, __ATOMIC_ACQUIRE) & ~target->logged_loads;
	char deep[sizeof(loads->deep)];

	target->logged_loads |= kinds;
	if (kinds & ML_LOADED_NAMESPACE) /* as in host/analysis/coverage.py */
		ml_blocks_gap(ML_GAP_CALLS, "what a second C library (dlmopen) allocates is not seen: use --tracer bpf");
	if (kinds & ML_LOADED_DEEP) {
		memcpy(deep, loads->deep, sizeof(deep));
		deep[sizeof(deep) - 1] = '\0';
		ml_blocks_gap(ML_GAP_CALLS, "what %s allocates, loaded with RTLD_DEEPBIND, is not seen: use --tracer bpf",
			      deep);
	}
}

int ml_preload_hooked_write(struct ml_preload_target *target)
{
	struct ml_segment *segment = target->view.segment;
	ml_u32 n = __atomic_load_n(&segment->n_hooked, __ATOMIC_ACQUIRE);
	struct ml_hooked rows[HOOKED_ROWS];

	__atomic_store_n(&segment->agent_alive_ns, ml_clock_ns(), __ATOMIC_RELAXED);
	if (n > ML_HOOKED_MAX)
		n = ML_HOOKED_MAX;
	while (target->n_hooked < n) {
		ml_u32 count = 0;

		for (; count < HOOKED_ROWS && target->n_hooked < n; count++) {
			rows[count] = target->view.hooked[target->n_hooked++];
			rows[count].pid = target->pid;
		}
		if (ml_blocks_write(ML_BLOCK_HOOKED, rows, count * sizeof(rows[0])))
			return -1;
	}
	log_sandbox(target);
	log_python(target);
	log_sharing(target);
	log_unseen_loads(target);
	if (segment->n_hooked_lost && !target->is_hooked_lost_reported) {
		target->is_hooked_lost_reported = true;
		ml_blocks_gap(ML_GAP_PROGRAMS_UNKNOWN, "pid %u loads too many modules: the state of some is not reported",
			      target->pid);
	}
	return 0;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

/* As in preload/segment/keys.c, without adding a key. */
struct ml_key *ml_preload_target_find_key(const struct ml_preload_target *target, ml_u64 key)
{
	const struct ml_view *view = &target->view;

	for (ml_u32 i = 0; i < ML_KEY_PROBES; i++) {
		const ml_u32 *entry = &view->key_index[ml_key_slot(&view->settings, key, i)];
		ml_u32 number = __atomic_load_n(entry, __ATOMIC_ACQUIRE);

		if (!number || number >= view->settings.n_keys)
			return NULL;
		if (view->keys[number].key == key)
			return &view->keys[number];
	}
	return NULL;
}
