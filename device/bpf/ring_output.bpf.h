/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Output through the BPF ring buffer (kernel commit 457f44363a88, in v5.8): one ring, in order. */
#pragma once

#include "fixups.bpf.h"

ML_RING(evidence, 16u << 20);

#include "stack_above.bpf.h"

/* Sends all pending calls before evidence whose fixups they exceed. */
static __noinline void ml_send_returns(struct ml_thread *thread, ml_u64 sequence)
{
	struct ml_bpf_returns *returns = &thread->returns;

	returns->sequence = sequence;
	returns->n = thread->depth;
	for (ml_u32 i = 0; i < ML_PENDING && i < thread->depth; i++) {
		const struct ml_pending *pending = &thread->pending[(thread->depth - 1 - i) & (ML_PENDING - 1)];

		returns->fixups[i].slot_address = pending->sp;
		returns->fixups[i].value = pending->return_address;
	}
	bpf_ringbuf_output(&evidence, returns, sizeof(*returns), options.quiet_flags);
}

struct ml_record {
	struct ml_evidence evidence;
	struct ml_regs registers;
};

static __noinline void ml_mark_fault(struct ml_evidence *evidence)
{
	evidence->stack_bytes = 0;
	evidence->flags |= ML_EVIDENCE_STACK_FAULT;
	ml_count(ML_LOST_STACK_FAULT, 1);
}

static __always_inline void ml_fill(struct ml_record *record, struct ml_regs *regs, struct ml_thread *thread,
				    const struct ml_bpf_block *block, ml_u64 address, ml_u64 key, ml_u64 bytes)
{
	struct ml_evidence *evidence = &record->evidence;

	evidence->function = (ml_u16)block->function;
	evidence->sequence = block->sequence;
	evidence->timestamp_ns = block->timestamp_ns;
	evidence->key = key;
	evidence->address = address;
	evidence->size = block->size;
	*(ml_u64 *)&evidence->pid = thread->identity;
	*(ml_u32 *)&evidence->n_registers = ML_N_REGISTERS; /* and n_fixups = 0 */
	evidence->stack_bytes = (ml_u32)bytes;
	evidence->stack_address = ML_SP(regs);
	evidence->registers_known = ML_REGISTERS_KNOWN;
	if (thread->depth)
		ml_add_fixups(evidence, thread, thread->depth);
	bpf_probe_read_kernel(&record->registers, sizeof(record->registers), regs);
}

/*
 * A record with room for `room` stack bytes: the ring buffer takes only sizes that the verifier knows. Returns -1 if
 * the ring is full.
 */
#define ML_DEFINE_SEND(room)                                                                                                  \
	static __always_inline int ml_send_##room(struct ml_regs *regs, struct ml_thread *thread,                             \
						  const struct ml_bpf_block *block, ml_u64 address, ml_u64 key, ml_u64 bytes, \
						  ml_u64 flags)                                                               \
	{                                                                                                                     \
		struct {                                                                                                      \
			struct ml_record record;                                                                              \
			ml_u8 stack[room];                                                                                    \
		} *out = bpf_ringbuf_reserve(&evidence, sizeof(*out), 0);                                                     \
                                                                                                                              \
		if (!out)                                                                                                     \
			return -1;                                                                                            \
		out->record.evidence.record_bytes = sizeof(*out);                                                             \
		out->record.evidence.flags = (ml_u16)flags;                                                                   \
		ml_fill(&out->record, regs, thread, block, address, key, bytes);                                              \
		__asm__ volatile("" : "+r"(bytes)); /* the checked value itself is used, not a copy */                        \
		if (bytes > (room) || bpf_probe_read_user(out->stack, (ml_u32)bytes, (const void *)ML_SP(regs)))              \
			ml_mark_fault(&out->record.evidence);                                                                 \
		bpf_ringbuf_submit(out, thread->walk.wakeup);                                                                 \
		return 0;                                                                                                     \
	}

ML_DEFINE_SEND(512)
ML_DEFINE_SEND(1024)
ML_DEFINE_SEND(2048)
ML_DEFINE_SEND(4096)
ML_DEFINE_SEND(6144)
ML_DEFINE_SEND(8192)
ML_DEFINE_SEND(12288)
ML_DEFINE_SEND(16384)
ML_DEFINE_SEND(32768)
ML_DEFINE_SEND(65528)

/* Sends the words that the walk has read and their offsets: all that unwinding the stack of an exact key needs. */
#define ML_DEFINE_SEND_WORDS(room)                                                                                    \
	static __always_inline int ml_send_words_##room(struct ml_regs *regs, struct ml_thread *thread,               \
							const struct ml_bpf_block *block, ml_u64 address, ml_u64 key, \
							ml_u64 flags)                                                 \
	{                                                                                                             \
		struct {                                                                                              \
			struct ml_record record;                                                                      \
			ml_u64 n_words;                                                                               \
			ml_u64 words[room];                                                                           \
			ml_u16 offsets[room];                                                                         \
		} *out = bpf_ringbuf_reserve(&evidence, sizeof(*out), 0);                                             \
                                                                                                                      \
		if (!out)                                                                                             \
			return -1;                                                                                    \
		out->record.evidence.record_bytes = sizeof(*out);                                                     \
		out->record.evidence.flags = (ml_u16)flags;                                                           \
		ml_fill(&out->record, regs, thread, block, address, key, thread->walk.sp - thread->walk.begin);       \
		out->n_words = thread->walk.n_offsets;                                                                \
		bpf_probe_read_kernel(out->words, sizeof(out->words), thread->walk.read);                             \
		bpf_probe_read_kernel(out->offsets, sizeof(out->offsets), thread->walk.offsets);                      \
		bpf_ringbuf_submit(out, thread->walk.wakeup);                                                         \
		return 0;                                                                                             \
	}

ML_DEFINE_SEND_WORDS(32)
ML_DEFINE_SEND_WORDS(128)

#define ML_WHOLE ((ml_u64)ML_EVIDENCE_STACK_WHOLE << 32)

/* The longest readable slice, of a few sizes, of a stack whose end is unknown. */
static __always_inline ml_u64 ml_readable_slice(ml_u64 sp)
{
	ml_u64 word;

	for (ml_u32 bytes = 16384; bytes > 256; bytes /= 4)
		if (bytes <= options.stack_bytes && !bpf_probe_read_user(&word, sizeof(word), (const void *)(sp + bytes - 8)))
			return bytes;
	return 256;
}

/*
 * The slice if the known end does not serve: on another stack, or if the agent may know its end by now; else the
 * largest readable one. With extend_stacks its rest is sent first. In deep nesting ml_next_pending() resets the end, so
 * that this runs each time and costs other calls nothing.
 */
static __noinline ml_u64 ml_find_slice(struct ml_thread *thread, ml_u64 sp)
{
	ml_u64 above, bytes, end;

	if (!ml_stack_above(thread, sp))
		ml_learn_stack_end(thread, sp);
	above = ml_stack_above(thread, sp);
	end = above ? thread->stack_end : 0;
	if (thread->depth > ML_FIXUPS) {
		ml_send_returns(thread, thread->sequence);
		thread->stack_end = 0;
	}
	if (above && above <= options.stack_bytes)
		return above | ML_WHOLE;
	bytes = above ? options.stack_bytes : ml_readable_slice(sp);
	if (options.extend_stacks)
		ml_send_above(sp + bytes, end, thread->sequence);
	return bytes;
}

/* The verifier removes what options.stack_bytes rules out. */
#define ML_TRY(room)                          \
	if (cap <= (room) || bytes <= (room)) \
	return ml_send_##room(regs, thread, block, address, key, bytes, flags)

/*
 * Sends the stack up to its end, at most cap bytes (options.stack_bytes); with ML_EVIDENCE_STACK_SPARSE only its words,
 * if they are known. Returns -1 if the ring is full.
 */
static __always_inline int ml_send_evidence(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					    ml_u64 address, ml_u64 key, ml_u64 flags, ml_u32 cap)
{
	ml_u64 above = thread->stack_end - ML_SP(regs);
	ml_u64 bytes = above;

	flags |= ML_EVIDENCE_AT_RETURN;
	if (flags & ML_EVIDENCE_STACK_SPARSE) {
		if (ml_has_words(thread, regs, key))
			return thread->walk.n_offsets <= 32 ? ml_send_words_32(regs, thread, block, address, key, flags) :
							      ml_send_words_128(regs, thread, block, address, key, flags);
		flags &= ~(ml_u64)ML_EVIDENCE_STACK_SPARSE;
	}
	if (above - 1 < cap) {
		flags |= ML_EVIDENCE_STACK_WHOLE;
	} else {
		ml_u64 slice = ml_find_slice(thread, ML_SP(regs));

		bytes = slice & 0xffffffff;
		flags |= slice >> 32;
	}
	ML_TRY(512);
	ML_TRY(1024);
	ML_TRY(2048);
	ML_TRY(4096);
	ML_TRY(6144);
	ML_TRY(8192);
	ML_TRY(12288);
	ML_TRY(16384);
	ML_TRY(32768);
	return ml_send_65528(regs, thread, block, address, key, bytes, flags);
}

/*
 * Reserves bytes of the half of the ring that verifying evidence may fill; false if there are none. Counted here,
 * because some runtimes cannot tell how full a ring is.
 */
static __always_inline bool ml_reserve_verifying(ml_u64 bytes)
{
	struct ml_bpf_code *shared = ml_code();

	if (!shared || *(const volatile ml_u64 *)&shared->verifying_sent - *(const volatile ml_u64 *)&shared->verifying_taken >
			       options.ring_bytes / 2)
		return false;
	__sync_fetch_and_add(&shared->verifying_sent, bytes + sizeof(struct ml_record));
	return true;
}

/* Returns 0, or not if there is no room. */
static __always_inline long ml_output_event(struct ml_regs *regs, struct ml_event *event)
{
	(void)regs;
	return bpf_ringbuf_output(&evidence, event, sizeof(*event), options.quiet_flags);
}
