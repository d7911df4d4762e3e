/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of unwind/walk/step.py for many samples, with the same results to the bit. WALK_LANES samples are stepped in
 * turns; each prefetches the memory of its next half step before the next lane runs.
 * Freestanding but for memcpy. Reads only the arrays in struct walk, which the caller has checked.
 */
#include "walk.h"

#define PREFETCH(p) __builtin_prefetch(p)
#define KEY_MULTIPLIER 0x9E3779B97F4A7C15ull
#define KEY_EMPTY UINT64_MAX
#define SP_DISTANCE_MAX ((int64_t)1 << 48)

enum { ROOT = 0, NO_UNWIND_ROW = 2, STACK_TRUNCATED = 3, NO_PROGRESS = 4, MAX_FRAMES = 6 }; /* TraceEnd */
enum { METHOD_REGISTERS = 0, METHOD_DEX = 7 }; /* Method */
enum turn { GOES_ON, IS_OVER };

struct lanes {
	struct walk_lane lane[WALK_LANES];
	struct walk_frame buffer[WALK_LANES][WALK_BUFFER_FRAMES];
};

static uint64_t key_of(const struct walk *walk, uint64_t pc, uint64_t is_return, uint64_t space_key)
{
	if (pc >> walk->pc_bits)
		return space_key;
	return (pc << 1 | is_return) | space_key;
}

static uint64_t slot_of(const struct walk *walk, uint64_t key)
{
	return key * KEY_MULTIPLIER >> walk->key_shift;
}

/* The line of a key, or -1. */
static int32_t find(const struct walk *walk, uint64_t key, uint64_t slot)
{
	for (;; slot = (slot + 1) & walk->key_mask) {
		if (walk->keys[slot] == key)
			return walk->values[slot];
		if (walk->keys[slot] == KEY_EMPTY)
			return -1;
	}
}

static uint64_t word_at(const struct walk *walk, const struct walk_lane *lane, int64_t offset)
{
	uint64_t word = 0;

	if (walk->word_bytes == 8)
		__builtin_memcpy(&word, lane->stack + offset, 8);
	else
		__builtin_memcpy(&word, lane->stack + offset, 4); /* little-endian */
	return word;
}

static int is_readable(const struct walk_lane *lane, int64_t offset)
{
	return offset >= 0 && offset <= lane->limit;
}

static void flush(struct walk *walk, struct walk_lane *lane, const struct walk_frame *buffer)
{
	struct walk_segment *segment = walk->segments + walk->segment_count;

	if (!lane->buffered)
		return;
	*segment = (struct walk_segment){ lane->sample, lane->level - lane->buffered, lane->buffered, 0,
					  (uint64_t)walk->frame_count };
	__builtin_memcpy(walk->frames + walk->frame_count, buffer, lane->buffered * sizeof(*buffer));
	walk->frame_count += lane->buffered;
	walk->segment_count++;
	lane->buffered = 0;
}

static enum turn finish(struct walk *walk, struct walk_lane *lane, const struct walk_frame *buffer, uint8_t end)
{
	flush(walk, lane, buffer);
	walk->depth[lane->sample] = lane->level;
	walk->ends[lane->sample] = end;
	return IS_OVER;
}

/* Leaves the whole sample to step.py. */
static enum turn give_up(struct walk *walk, struct walk_lane *lane)
{
	lane->buffered = 0;
	walk->outcome[lane->sample] = WALK_NEEDS_SCALAR;
	return IS_OVER;
}

/* Suspends the sample until Python has added the line of a key. */
static enum turn wait_for(struct walk *walk, struct walk_lane *lane, const struct walk_frame *buffer, uint64_t key)
{
	flush(walk, lane, buffer);
	lane->missing = key;
	walk->waiting[walk->waiting_count++] = *lane;
	return IS_OVER;
}

static void prefetch_line(const struct walk *walk, struct walk_lane *lane)
{
	lane->slot = slot_of(walk, key_of(walk, lane->pc, lane->is_return, lane->space_key));
	PREFETCH(walk->keys + lane->slot);
	PREFETCH(walk->values + lane->slot);
	lane->is_reading = 0;
}

static void add_frame(struct walk *walk, struct walk_lane *lane, struct walk_frame *buffer, uint64_t pc, uint8_t is_return,
		      uint8_t method)
{
	if (lane->buffered == WALK_BUFFER_FRAMES)
		flush(walk, lane, buffer);
	buffer[lane->buffered++] = (struct walk_frame){ pc, lane->base + (uint64_t)lane->sp, is_return, method, { 0 } };
	lane->level++;
}

/* Adds the frame that the lane is in now. */
static enum turn arrive(struct walk *walk, struct walk_lane *lane, struct walk_frame *buffer)
{
	if (lane->level == walk->max_frames)
		return finish(walk, lane, buffer, MAX_FRAMES);
	add_frame(walk, lane, buffer, lane->pc, lane->is_return, lane->method);
	prefetch_line(walk, lane);
	return GOES_ON;
}

static int64_t distance(const struct walk *walk, const struct walk_lane *lane, uint64_t address)
{
	uint64_t apart = address - lane->base;

	return (int64_t)(apart << walk->tag_bits) >> walk->tag_bits; /* without the address's tag */
}

/* The value of a callee-saved register (an index into saved); 0 where it is not known. */
static int register_value(const struct walk *walk, const struct walk_lane *lane, int position, uint64_t *value)
{
	int64_t location = lane->location[position];

	if (location == WALK_IN_REGISTER)
		*value = walk->register_values[walk->chosen[lane->sample] * walk->registers + walk->saved_slot[position]];
	else if (location != WALK_UNKNOWN)
		*value = word_at(walk, lane, location);
	return location != WALK_UNKNOWN;
}

/* Sets the CFA; 0 where a register or a stack word that it needs is unknown. */
static int find_cfa(const struct walk *walk, struct walk_lane *lane, const struct walk_line *line)
{
	uint64_t value;

	lane->cfa = lane->sp + line->cfa_offset;
	if (line->cfa_register >= 0) {
		if (!register_value(walk, lane, line->cfa_register, &value))
			return 0;
		lane->cfa = distance(walk, lane, value) + line->cfa_offset;
	}
	if (!(line->flags & WALK_READS_CFA))
		return 1;
	if (!is_readable(lane, lane->cfa))
		return 0;
	value = word_at(walk, lane, lane->cfa) + (uint64_t)walk->interpreters[lane->line].cfa_added;
	lane->cfa = distance(walk, lane, walk->word_bytes == 8 ? value : (uint32_t)value);
	return 1;
}

/* Whether an interrupted function may not have set up its frame yet, so that step.py must try the link register. */
static int is_uncertain(const struct walk *walk, const struct walk_lane *lane, const struct walk_line *line)
{
	if (line->kind == WALK_FRAME_POINTER && walk->is_signed)
		return 1;
	return walk->uncertain_kinds >> line->kind & 1 && !lane->is_return;
}

/* Ends the trace at a pc whose line has no step. */
static enum turn end_by_kind(struct walk *walk, struct walk_lane *lane, const struct walk_frame *buffer,
			     const struct walk_line *line)
{
	uint64_t fp;

	if (line->kind == WALK_START && register_value(walk, lane, walk->fp_position, &fp) && !fp)
		return finish(walk, lane, buffer, ROOT);
	if (line->kind == WALK_SCALAR || is_uncertain(walk, lane, line))
		return give_up(walk, lane);
	return finish(walk, lane, buffer, walk->end_of_kind >> 4 * line->kind & 15);
}

static int frame_record_is_readable(const struct walk *walk, const struct walk_lane *lane)
{
	int64_t fp = lane->cfa - walk->fp_span;

	return fp >= lane->sp && is_readable(lane, fp + walk->fp_saved);
}

/* First half of a step: finds the address of the return address. */
static enum turn find_return_address(struct walk *walk, struct walk_lane *lane, const struct walk_frame *buffer)
{
	uint64_t key = key_of(walk, lane->pc, lane->is_return, lane->space_key);
	int32_t number = find(walk, key, lane->slot);
	const struct walk_line *line = walk->lines + number;
	int readable;

	if (number < 0)
		return wait_for(walk, lane, buffer, key);
	lane->line = (uint32_t)number;
	if (line->kind > WALK_FRAME_POINTER || is_uncertain(walk, lane, line))
		return end_by_kind(walk, lane, buffer, line);
	readable = find_cfa(walk, lane, line);
	lane->back = lane->cfa + line->return_offset;
	if (line->flags & WALK_BY_LINK)
		readable = readable && (lane->level > 1 ||
					walk->registers_known[walk->chosen[lane->sample] * walk->registers + walk->link]);
	else
		readable = readable && is_readable(lane, lane->back);
	if (readable && lane->cfa & (walk->word_bytes - 1))
		return give_up(walk, lane);
	if (line->kind == WALK_FRAME_POINTER && !(readable && frame_record_is_readable(walk, lane)))
		return finish(walk, lane, buffer, NO_UNWIND_ROW);
	if (!readable)
		return finish(walk, lane, buffer, STACK_TRUNCATED);
	if (!(line->flags & WALK_BY_LINK))
		PREFETCH(lane->stack + lane->back);
	lane->is_reading = 1;
	return GOES_ON;
}

static uint64_t return_address(const struct walk *walk, const struct walk_lane *lane, const struct walk_line *line)
{
	uint64_t address;

	if (!(line->flags & WALK_BY_LINK))
		address = word_at(walk, lane, lane->back);
	else if (lane->level > 1)
		address = lane->pc; /* a caller's link register holds its own pc, as the callee left it */
	else
		address = walk->register_values[walk->chosen[lane->sample] * walk->registers + walk->link];
	if (line->flags & WALK_SIGNED)
		address &= ~walk->signature_masks[lane->space_key >> (walk->pc_bits + 1)];
	return address & walk->word_mask;
}

static void restore_registers(const struct walk *walk, struct walk_lane *lane, const struct walk_line *line)
{
	for (int i = 0; i < walk->tracked; i++) {
		int position = walk->tracked_position[i];
		int32_t offset = line->saved[position];
		int64_t slot = lane->cfa + offset;

		if (offset == WALK_KEPT)
			continue;
		if (offset == WALK_LOST || slot > lane->limit || (slot < 0 && slot >= lane->sp))
			lane->location[position] = WALK_UNKNOWN;
		else if (slot >= lane->sp) /* below it a slot is dead: see step.py */
			lane->location[position] = slot;
	}
}

/* 1: a step by frame pointer leads out of all mappings, which ends the walk. 0: it does not. -1: *key has no line yet. */
static int leads_nowhere(const struct walk *walk, const struct walk_lane *lane, uint64_t address, uint64_t *key)
{
	int32_t line;

	if (!address && !word_at(walk, lane, lane->cfa - walk->fp_span + walk->fp_saved))
		return 0;
	*key = key_of(walk, address, 1, lane->space_key);
	line = find(walk, *key, slot_of(walk, *key));
	return line < 0 ? -1 : walk->lines[line].kind == WALK_NO_MAPPING;
}

/*
 * The frame of the method that an interpreter was running in this frame. Called before registers are restored;
 * 0 if there is none.
 */
static uint64_t dex_pc(const struct walk *walk, const struct walk_lane *lane, const struct walk_line *line)
{
	const struct walk_interpreter *interpreter = walk->interpreters + lane->line;
	uint64_t value;

	if (!(line->flags & WALK_HAS_DEX_PC) || !register_value(walk, lane, interpreter->dex_register, &value))
		return 0;
	value += (uint64_t)interpreter->dex_offset;
	return walk->word_bytes == 8 ? value : (uint32_t)value;
}

/* Second half of a step: to the caller. */
static enum turn step_to_caller(struct walk *walk, struct walk_lane *lane, struct walk_frame *buffer)
{
	const struct walk_line *line = walk->lines + lane->line;
	uint64_t address = return_address(walk, lane, line), key, bytecode;

	if (line->kind == WALK_FRAME_POINTER) {
		int nowhere = leads_nowhere(walk, lane, address, &key);

		if (nowhere < 0)
			return wait_for(walk, lane, buffer, key);
		if (nowhere)
			return finish(walk, lane, buffer, NO_UNWIND_ROW);
	}
	if (!address)
		return finish(walk, lane, buffer, ROOT);
	if (lane->cfa < lane->sp || (address == lane->pc && (lane->cfa == lane->sp || line->flags & WALK_BY_LINK)))
		return finish(walk, lane, buffer, NO_PROGRESS);
	bytecode = dex_pc(walk, lane, line);
	restore_registers(walk, lane, line);
	lane->pc = address;
	lane->sp = lane->cfa;
	lane->is_return = 1;
	lane->method = line->method;
	if (bytecode && lane->level < walk->max_frames)
		add_frame(walk, lane, buffer, bytecode, 0, METHOD_DEX);
	return arrive(walk, lane, buffer);
}

static enum turn begin(struct walk *walk, struct walk_lane *lane, struct walk_frame *buffer, int64_t position)
{
	int64_t sample = walk->chosen[position];
	const uint64_t *values = walk->register_values + sample * walk->registers;
	const uint8_t *known = walk->registers_known + sample * walk->registers;

	lane->sample = (uint32_t)position;
	lane->level = lane->buffered = 0;
	lane->base = walk->stack_address[sample];
	lane->pc = values[walk->pc];
	lane->sp = (int64_t)(values[walk->sp] - lane->base);
	lane->stack = walk->stack_bytes + walk->stack_offset[sample];
	lane->limit = walk->stack_length[sample] - walk->word_bytes;
	lane->space_key = (uint64_t)(walk->space[sample] - walk->first_space) << (walk->pc_bits + 1);
	lane->is_return = walk->at_return[sample];
	lane->method = METHOD_REGISTERS;
	for (int i = 0; i < walk->saved_registers; i++)
		lane->location[i] = known[walk->saved_slot[i]] ? WALK_IN_REGISTER : WALK_UNKNOWN;
	if (walk->outcome[position] != WALK_DONE) /* the caller has left it to step.py */
		return IS_OVER;
	if (!known[walk->pc] || !known[walk->sp] || lane->sp > SP_DISTANCE_MAX || lane->sp < -SP_DISTANCE_MAX)
		return give_up(walk, lane);
	return arrive(walk, lane, buffer);
}

/* Gives the lane its next sample; 0 when none is left. */
static int fill(struct walk *walk, struct walk_lane *lane, struct walk_frame *buffer, int64_t *resumed)
{
	if (*resumed < walk->resumed_count) {
		*lane = walk->resumed[(*resumed)++];
		prefetch_line(walk, lane); /* the index may have grown */
		return 1;
	}
	while (walk->next < walk->end)
		if (begin(walk, lane, buffer, walk->next++) == GOES_ON)
			return 1;
	return 0;
}

static int has_room(const struct walk *walk)
{
	return walk->frame_capacity - walk->frame_count >= 2 * WALK_LANES * WALK_BUFFER_FRAMES &&
	       walk->segment_capacity - walk->segment_count >= 4 * WALK_LANES;
}

/* One step of every lane, first halves first: by the second half the memory that the first one prefetched has arrived. */
static int step_all(struct walk *walk, struct lanes *lanes, uint32_t *turns, int running, int64_t *resumed)
{
	for (int i = 0; i < running; i++) {
		struct walk_lane *lane = &lanes->lane[turns[i]];
		struct walk_frame *buffer = lanes->buffer[turns[i]];

		if (find_return_address(walk, lane, buffer) == IS_OVER && !fill(walk, lane, buffer, resumed))
			turns[i--] = turns[--running];
	}
	for (int i = 0; i < running; i++) {
		struct walk_lane *lane = &lanes->lane[turns[i]];
		struct walk_frame *buffer = lanes->buffer[turns[i]];

		if (lane->is_reading && step_to_caller(walk, lane, buffer) == IS_OVER && !fill(walk, lane, buffer, resumed))
			turns[i--] = turns[--running];
	}
	return running;
}

void walk_run(struct walk *walk)
{
	struct lanes lanes;
	uint32_t turns[WALK_LANES];
	int64_t resumed = 0;
	int running = 0;

	for (uint32_t i = 0; i < WALK_LANES; i++)
		if (fill(walk, &lanes.lane[i], lanes.buffer[i], &resumed))
			turns[running++] = i;
	while (running && has_room(walk))
		running = step_all(walk, &lanes, turns, running, &resumed);
	for (int i = 0; i < running; i++)
		wait_for(walk, &lanes.lane[turns[i]], lanes.buffer[turns[i]], KEY_EMPTY);
	while (resumed < walk->resumed_count) /* the block was full before they resumed */
		walk->waiting[walk->waiting_count++] = walk->resumed[resumed++];
}
