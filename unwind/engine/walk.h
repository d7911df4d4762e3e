/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between Python and the compiled engine: step plans and samples in, frames out.
 * unwind/engine/library.py mirrors every structure here; WALK_VERSION changes with each of them and with rows.h.
 */
#pragma once

#include <stdint.h>

#define WALK_VERSION 4
#define WALK_SAVED_MAX 12
#define WALK_LANES 24        /* samples in flight, so as many outstanding loads from memory */
#define WALK_BUFFER_FRAMES 64  /* of a lane, before they are copied to the block */

/* How to step out of a frame, one cache line each. RuleLines (unwind/walk/rule_lines.py) writes them. */
struct walk_line {
	int32_t cfa_offset, return_offset;
	uint8_t kind, method;
	int8_t cfa_register; /* index into saved, -1 = stack pointer */
	uint8_t flags;
	int32_t saved[WALK_SAVED_MAX]; /* from the CFA, or one of these: */
	uint32_t unused;
};

#define WALK_KEPT INT32_MIN
#define WALK_LOST (INT32_MIN + 1)

enum walk_flag {
	WALK_BY_LINK = 1,    /* the return address is in the link register */
	WALK_SIGNED = 2,     /* the return address is signed */
	WALK_READS_CFA = 4,  /* CFA = *(cfa_register + cfa_offset) + cfa_added */
	WALK_HAS_DEX_PC = 8, /* register dex_register + dex_offset points into the bytecode that runs */
};

/* The rest of a line with READS_CFA or HAS_DEX_PC: ART's interpreters. */
struct walk_interpreter {
	int32_t cfa_added, dex_offset, dex_register;
};

/* StepKind of unwind/walk/plan.py */
enum walk_kind {
	WALK_STEP,
	WALK_FRAME_POINTER,
	WALK_ROOT,
	WALK_NO_MAPPING,
	WALK_UNSUPPORTED_RULE,
	WALK_SCALAR,
	WALK_NO_UNWIND_ROW,
	WALK_START
};

/* A sample that is being stepped. Python keeps it between two calls when a line was missing. */
struct walk_lane {
	uint64_t pc, space_key, base; /* base: address of the slice's first byte */
	const uint8_t *stack;
	int64_t sp, limit, cfa, back; /* bytes from base; limit: of the last readable word */
	uint64_t missing;       /* key without a line */
	uint64_t slot;
	uint32_t sample, level, buffered, line;
	uint8_t is_return, method, is_reading, unused[5];
	int64_t location[WALK_SAVED_MAX]; /* of callee-saved registers: bytes from base, or one of these: */
};

#define WALK_IN_REGISTER (-1)
#define WALK_UNKNOWN (-2)

/* Frames [first, first + count) of a block are those of `sample` from `level` on. */
struct walk_segment {
	uint32_t sample, level, count, unused;
	uint64_t first;
};

struct walk_frame {
	uint64_t address, sp;
	uint8_t is_return, method, unused[6];
};

struct walk {
	/* the architecture (unwind/arch) */
	uint64_t word_mask;
	uint64_t uncertain_kinds, end_of_kind; /* a bit, and 4 bits, for each kind */
	int32_t word_bytes, tag_bits, registers, pc, sp, link, saved_registers, is_signed;
	int32_t fp_position, fp_saved, fp_span, pc_bits;
	int32_t saved_slot[WALK_SAVED_MAX];
	/* the lines, and an index from pc to line (unwind/walk/step_lines.py) */
	const struct walk_line *lines;
	const struct walk_interpreter *interpreters; /* by line */
	const uint64_t *keys;
	const int32_t *values;
	uint64_t key_mask;
	int32_t key_shift, tracked;
	int32_t tracked_position[WALK_SAVED_MAX];
	const uint64_t *signature_masks;
	/* the samples (SampleBatch) */
	const uint64_t *register_values;
	const uint8_t *registers_known;
	const uint64_t *stack_address;
	const int64_t *stack_offset, *stack_length;
	const uint8_t *stack_bytes;
	const int32_t *space;
	const uint8_t *at_return;
	const int64_t *chosen;
	int64_t first_space, next, end; /* positions in chosen; walk_run() advances next */
	/* in: samples whose missing line was added; out: samples with a missing line */
	const struct walk_lane *resumed;
	struct walk_lane *waiting;
	int64_t resumed_count, waiting_count;
	/* results; samples are positions in chosen */
	struct walk_frame *frames;
	struct walk_segment *segments;
	int64_t frame_capacity, frame_count, segment_capacity, segment_count;
	uint32_t *depth;
	uint8_t *ends, *outcome;
	uint32_t max_frames, unused;
};

/* outcome of a sample; TraceEnd is in ends */
enum walk_outcome { WALK_DONE, WALK_NEEDS_SCALAR };

int64_t walk_version(void); /* differs from that of library.py where the mirrored structures may differ */
/* Steps samples until each is done or has a missing line, or the block is full. */
void walk_run(struct walk *walk);
/* Copies one block's frames of samples that are WALK_DONE to the result's columns. first: by sample. */
void walk_copy_frames(const struct walk_frame *frames, const struct walk_segment *segments, int64_t count,
		      const uint8_t *outcome, const int64_t *first, uint64_t *address, uint64_t *sp, uint8_t *is_return,
		      uint8_t *method);
