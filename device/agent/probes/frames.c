// SPDX-License-Identifier: Apache-2.0
#include "agent/probes/frames.h"

#include <stdlib.h>
#include <string.h>

#include "agent/process/code_map.h"
#include "agent/process/signature_mask.h"
#include "frame_step.h"
#include "agent/protocol/extend.h"

#define FRAMES_MAX 256
#define OWN_RULES 4096

struct ml_frames {
	const struct ml_cfi_arch *arch; /* NULL or &native */
	struct ml_cfi_arch native;      /* with this machine's mask of addresses */
	struct ml_code_map map;
	/*
	 * Rules that the shared table does not hold: its set is full, or the rule would not last (code made at run time, unreadable memory).
	 * Without them each record would read the CFI again.
	 */
	struct ml_frame_rule own[OWN_RULES];
	struct ml_frame_rule lessons[FRAMES_MAX]; /* learned from the current record */
	ml_u64 images[ML_FRAME_RULES]; /* of each rule in the shared table */
	bool is_full;
};

/* One stack: the registers when the callee has returned. */
struct walk {
	const struct ml_evidence *record;
	const ml_u8 *stack;
	struct ml_frame frame;
};

struct ml_frames *ml_frames_create(void)
{
	struct ml_frames *frames = calloc(1, sizeof(*frames));

	if (frames && ml_cfi_native()) {
		frames->native = *ml_cfi_native();
		frames->native.signature_mask |= ml_signature_mask();
		frames->arch = &frames->native;
	}
	return frames;
}

const struct ml_cfi_arch *ml_frames_arch(const struct ml_frames *frames)
{
	return frames->arch;
}

void ml_frames_destroy(struct ml_frames *frames)
{
	if (!frames)
		return;
	ml_code_map_forget(&frames->map, 0);
	free(frames);
}

void ml_frames_forget(struct ml_frames *frames, ml_u32 pid)
{
	ml_code_map_forget(&frames->map, pid);
	memset(frames->own, 0, sizeof(frames->own));
}

/* ---- the table ----------------------------------------------------------------------------------- */

/* Image numbers may be per process, so the pid is part of the name of an own rule. */
static ml_u64 own_name(ml_u64 hash, ml_u32 pid)
{
	return hash ^ pid * 0xbf58476d1ce4e5b9ull;
}

static const struct ml_frame_rule *find_own(const struct ml_frames *frames, ml_u64 hash, ml_u32 pid)
{
	ml_u64 name = own_name(hash, pid);
	const struct ml_frame_rule *slot = &frames->own[name % OWN_RULES];

	return slot->hash == name ? slot : NULL;
}

static const struct ml_frame_rule *keep_own(struct ml_frames *frames, const struct ml_frame_rule *rule, ml_u32 pid)
{
	ml_u64 name = own_name(rule->hash, pid);
	struct ml_frame_rule *slot = &frames->own[name % OWN_RULES];

	*slot = *rule;
	slot->hash = name;
	return slot;
}

bool ml_frames_is_full(const struct ml_frames *frames)
{
	return frames->is_full;
}

ml_u32 ml_frames_recycle(struct ml_frames *frames, struct ml_frame_rule *rules, const ml_u64 *images, size_t n_images)
{
	ml_u32 n_dropped = 0;

	for (ml_u32 i = 0; i < ML_FRAME_RULES; i++) {
		if (!rules[i].hash || bsearch(&frames->images[i], images, n_images, sizeof(*images), ml_compare_u64))
			continue;
		/* before the next rule is written there */
		__atomic_exchange_n(&rules[i].hash, 0, __ATOMIC_SEQ_CST);
		n_dropped++;
	}
	frames->is_full = false;
	memset(frames->own, 0, sizeof(frames->own)); /* these may fit into the table now */
	return n_dropped;
}

/* ---- resolving ----------------------------------------------------------------------------------- */

/* Reads the CFI of one return address. The rule goes among the lessons, or among the own rules if it would not last. */
static const struct ml_frame_rule *resolve(struct ml_frames *frames, const struct ml_frames_space *space, ml_u64 return_address,
					   ml_u64 hash, int *n_lessons)
{
	struct ml_frame_rule rule = { .hash = hash, .cfa = ML_FRAME_NONE };
	struct ml_code_process *process = ml_code_map_process(&frames->map, space->pid, space->image);
	ml_u64 pc = return_address - 1; /* in the call: the next instruction may belong to another function */
	struct ml_fde fde;
	int is_file;
	enum ml_cfi_found found = ml_code_map_find(&frames->map, process, frames->arch, pc, &fde, &is_file);

	if (found == ML_CFI_UNREADABLE && !is_file)
		return NULL;
	if (found == ML_CFI_FOUND)
		found = ml_cfi_rule(&frames->map.memory, space->pid, frames->arch, &fde, pc, &rule);
	if (found == ML_CFI_UNREADABLE || !is_file)
		return keep_own(frames, &rule, space->pid);
	frames->lessons[*n_lessons] = rule;
	return &frames->lessons[(*n_lessons)++];
}

static const struct ml_frame_rule *find(struct ml_frames *frames, const struct ml_frames_space *space, ml_u64 return_address,
					int *n_lessons)
{
	ml_u64 hash = ml_frame_hash(return_address, space->image);
	const struct ml_frame_rule *rule = ml_frame_find(space->rules, hash);

	if (!rule)
		rule = find_own(frames, hash, space->pid);
	for (int i = 0; !rule && i < *n_lessons; i++) /* recursion */
		if (frames->lessons[i].hash == hash)
			rule = &frames->lessons[i];
	return rule ? rule : resolve(frames, space, return_address, hash, n_lessons);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

/* A word of the slice, with the original value where a uretprobe placed its trampoline. */
static int read_word(void *context, ml_u64 address, int is_fp, ml_u64 *word)
{
	const struct walk *walk = context;
	const struct ml_evidence *record = walk->record;
	ml_u64 offset = address - record->stack_address;

	if (record->stack_bytes < sizeof(*word) || offset > record->stack_bytes - sizeof(*word))
		return 0;
	(void)is_fp;
	memcpy(word, walk->stack + offset, sizeof(*word));
	for (int i = 0; i < record->n_fixups; i++)
		if (record->fixups[i].slot_address == address)
			*word = record->fixups[i].value;
	return 1;
}

static int begin(struct walk *walk, const struct ml_evidence *record, const struct ml_cfi_arch *arch)
{
	const ml_u64 *registers = (const ml_u64 *)(record + 1);
	ml_u64 needed = 1ull << arch->sp_slot | 1ull << arch->fp_slot | 1ull << arch->pc_slot;
	ml_u64 bytes = sizeof(*record) + record->n_registers * sizeof(ml_u64) + (ml_u64)record->stack_bytes;

	if (!(record->flags & ML_EVIDENCE_AT_RETURN) || record->n_registers <= arch->pc_slot ||
	    record->n_registers <= arch->sp_slot || record->n_registers > 64 || record->n_fixups > ML_FIXUPS ||
	    bytes > record->record_bytes || (record->registers_known & needed) != needed)
		return -1;
	*walk = (struct walk){
		.record = record,
		.stack = (const ml_u8 *)(registers + record->n_registers),
		.frame = {
			.return_address = ml_strip_signature(registers[arch->pc_slot], arch->signature_mask),
			.sp = registers[arch->sp_slot],
			.fp = registers[arch->fp_slot],
		},
	};
	return 0;
}

static int publish_lessons(struct ml_frames *frames, const struct ml_frames_space *space, int n_lessons)
{
	int n_added = 0;

	/* compared after all reads: these are true for this image, even if it ends right now */
	if (!n_lessons || space->image_now(space->context, space->pid) != space->image)
		return 0;
	for (int i = 0; i < n_lessons; i++) {
		ml_s32 added = ml_frame_add(space->rules, &frames->lessons[i]);

		if (added >= 0) {
			frames->images[added] = space->image;
			n_added++;
		} else {
			frames->is_full = true;
			keep_own(frames, &frames->lessons[i], space->pid);
		}
	}
	return n_added;
}

int ml_frames_learn(struct ml_frames *frames, const struct ml_frames_space *space, const struct ml_evidence *record)
{
	const struct ml_frame_rule *rule;
	struct walk walk;
	int n_lessons = 0;

	if (!frames->arch || begin(&walk, record, frames->arch))
		return 0;
	for (int i = 0; i < FRAMES_MAX && walk.frame.return_address; i++) {
		rule = find(frames, space, walk.frame.return_address, &n_lessons);
		if (!rule || !ml_frame_step(&walk.frame, rule, walk.frame.sp, frames->arch->signature_mask, read_word, &walk))
			break;
	}
	return publish_lessons(frames, space, n_lessons);
}
