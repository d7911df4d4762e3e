/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Output through the BPF ring buffer (kernel commit 457f44363a88, in v5.8): one ring, in order. */
#pragma once

#include "stack_key.bpf.h"

ML_RING(evidence, 16u << 20);

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

/* Instead of 0 for success: */
#define ML_SEND_FULL (-1) /* the ring */
#define ML_SEND_FAULT 1   /* a page is not present, or the record is too small */

/* In memory, of which the verifier knows nothing: else it follows the pages' code after each size of a slice. */
static __always_inline int ml_want_pages(struct ml_thread *thread, ml_u64 address, ml_u64 key, ml_u64 bytes, ml_u64 flags)
{
	thread->wanted = (struct ml_pages_wanted){ address, key, bytes, flags };
	return ML_SEND_FAULT;
}

/* A record with room for `room` stack bytes: the ring buffer takes only sizes that the verifier knows. */
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
			return ML_SEND_FULL;                                                                                  \
		out->record.evidence.record_bytes = sizeof(*out);                                                             \
		out->record.evidence.flags = (ml_u16)flags;                                                                   \
		ml_fill(&out->record, regs, thread, block, address, key, bytes);                                              \
		__asm__ volatile("" : "+r"(bytes)); /* the checked value itself is used, not a copy */                        \
		if (bytes > (room) || bpf_probe_read_user(out->stack, (ml_u32)bytes, (const void *)ML_SP(regs))) {            \
			const volatile struct ml_evidence *not_sent = &out->record.evidence;                                  \
                                                                                                                              \
			ml_want_pages(thread, not_sent->address, not_sent->key, not_sent->stack_bytes, not_sent->flags);      \
			bpf_ringbuf_discard(out, options.quiet_flags);                                                        \
			return ML_SEND_FAULT;                                                                                 \
		}                                                                                                             \
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

/*
 * The same with whole pages, of which only those present are read, by a global function, so that the verifier follows the loop once and not
 * for each record.
 */
#define ML_DEFINE_SEND_PAGES(n_pages)                                                                                    \
	struct ml_paged_##n_pages {                                                                                      \
		struct ml_bpf_pages pages;                                                                               \
		ml_u8 stack[(n_pages) * ML_BPF_PAGE_BYTES];                                                              \
	};                                                                                                               \
                                                                                                                         \
	__noinline int ml_read_pages_##n_pages(struct ml_paged_##n_pages *into, ml_u64 page, ml_u64 n)                   \
	{                                                                                                                \
		for (ml_u32 i = 0; into && i < (n_pages) && i < n; i++)                                                  \
			into->pages.is_present[i] =                                                                      \
				!bpf_probe_read_user(&into->stack[i * ML_BPF_PAGE_BYTES], ML_BPF_PAGE_BYTES,             \
						     (const void *)(page + i * ML_BPF_PAGE_BYTES));                      \
		return 0;                                                                                                \
	}                                                                                                                \
                                                                                                                         \
	static __always_inline int ml_send_pages_##n_pages(struct ml_regs *regs, struct ml_thread *thread,               \
							   const struct ml_bpf_block *block, ml_u64 bytes, ml_u64 flags) \
	{                                                                                                                \
		const volatile struct ml_pages_wanted *wanted = &thread->wanted;                                         \
		struct {                                                                                                 \
			struct ml_record record;                                                                         \
			struct ml_paged_##n_pages paged;                                                                 \
		} *out = bpf_ringbuf_reserve(&evidence, sizeof(*out), 0);                                                \
		ml_u64 page = ML_SP(regs) & ~(ml_u64)(ML_BPF_PAGE_BYTES - 1);                                            \
                                                                                                                         \
		if (!out)                                                                                                \
			return ML_SEND_FULL;                                                                             \
		out->record.evidence.record_bytes = sizeof(*out);                                                        \
		out->record.evidence.flags = (ml_u16)(flags | ML_BPF_EVIDENCE_PAGED);                                    \
		ml_fill(&out->record, regs, thread, block, wanted->address, wanted->key, bytes);                         \
		ml_read_pages_##n_pages(&out->paged, page,                                                               \
					(ML_SP(regs) + bytes - page + ML_BPF_PAGE_BYTES - 1) / ML_BPF_PAGE_BYTES);       \
		bpf_ringbuf_submit(out, thread->walk.wakeup);                                                            \
		return 0;                                                                                                \
	}

ML_DEFINE_SEND_PAGES(17)
ML_DEFINE_SEND_PAGES(65)
ML_DEFINE_SEND_PAGES(257)

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

/* Long stacks leave half of the ring to others. Runtimes that cannot tell how full it is answer 0. */
static __always_inline ml_u64 ml_reach(void)
{
	return bpf_ringbuf_query(&evidence, BPF_RB_AVAIL_DATA) > options.ring_bytes / 2 ? options.stack_bytes :
											  options.reach_bytes;
}

/*
 * The slice if the known stack does not serve: sp is on another one, or the stack is longer. In deep nesting
 * ml_next_pending() forgets the stack, so that this runs each time and costs other calls nothing. Global, so that the verifier checks it
 * once.
 */
__noinline ml_u64 ml_find_slice(ml_u64 sp)
{
	struct ml_thread *thread = ml_known_thread();
	ml_u64 above, reach;

	if (!thread)
		return options.stack_bytes;
	if (!ml_stack_above(thread, sp))
		ml_learn_stack(thread, sp);
	above = ml_stack_above(thread, sp);
	if (thread->depth > ML_FIXUPS) {
		ml_send_returns(thread, thread->sequence);
		ml_forget_stack(thread);
	}
	if (!above)
		return options.stack_bytes;
	reach = above > options.stack_bytes ? ml_reach() : options.stack_bytes;
	return above <= reach ? above | ML_WHOLE : reach;
}

/* The verifier removes what options.stack_bytes rules out. */
#define ML_TRY(room)                          \
	if (cap <= (room) || bytes <= (room)) \
	return ml_send_##room(regs, thread, block, address, key, bytes, flags)

static __always_inline int ml_send_slice(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					 ml_u64 address, ml_u64 key, ml_u64 bytes, ml_u64 flags, ml_u32 cap)
{
	ML_TRY(512);
	ML_TRY(1024);
	ML_TRY(2048);
	ML_TRY(4096);
	ML_TRY(6144);
	ML_TRY(8192);
	ML_TRY(12288);
	ML_TRY(16384);
	ML_TRY(32768);
	return bytes > ML_STACK_BYTES_MAX ? ml_want_pages(thread, address, key, bytes, flags) :
					    ml_send_65528(regs, thread, block, address, key, bytes, flags);
}

/* Not inlined, which would cost every record registers. */
static __noinline int ml_send_pages(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block)
{
	const volatile struct ml_pages_wanted *wanted = &thread->wanted;

	if (wanted->bytes <= 16 * ML_BPF_PAGE_BYTES)
		return ml_send_pages_17(regs, thread, block, wanted->bytes, wanted->flags);
	if (wanted->bytes <= 64 * ML_BPF_PAGE_BYTES)
		return ml_send_pages_65(regs, thread, block, wanted->bytes, wanted->flags);
	return ml_send_pages_257(regs, thread, block, wanted->bytes, wanted->flags);
}

/* Sends the stack that a handler interrupted, before its own stack. Returns as ml_send_evidence(). */
static __noinline int ml_send_interrupted(struct ml_thread *thread, const struct ml_bpf_block *block, ml_u64 key)
{
	struct ml_bpf_bounds handlers;
	ml_u64 sp, bytes;

	if (!thread || !block)
		return 0;
	handlers = thread->stack;
	sp = ML_SP(&thread->interrupted);
	ml_learn_stack(thread, sp);
	bytes = ml_stack_above(thread, sp) & ~7ull;
	thread->stack = handlers;
	if (!bytes || bytes > options.stack_bytes)
		bytes = options.stack_bytes;
	ml_want_pages(thread, 0, key, bytes, ML_EVIDENCE_AT_RETURN | ML_BPF_EVIDENCE_INTERRUPTED);
	return ml_send_pages_17(&thread->interrupted, thread, block, bytes, thread->wanted.flags);
}

/*
 * Sends the stack up to its end, at most options.reach_bytes; with ML_EVIDENCE_STACK_SPARSE only its words, if they are
 * known. cap: options.stack_bytes. Returns ML_SEND_FULL or 0.
 */
static __always_inline int ml_send_evidence(struct ml_regs *regs, struct ml_thread *thread, const struct ml_bpf_block *block,
					    ml_u64 address, ml_u64 key, ml_u64 flags, ml_u32 cap)
{
	ml_u64 bytes = thread->stack.end - ML_SP(regs);
	int result;

	flags |= ML_EVIDENCE_AT_RETURN;
	if (flags & ML_EVIDENCE_STACK_SPARSE) {
		if (ml_has_words(thread, regs, key))
			return thread->walk.n_offsets <= 32 ? ml_send_words_32(regs, thread, block, address, key, flags) :
							      ml_send_words_128(regs, thread, block, address, key, flags);
		flags &= ~(ml_u64)ML_EVIDENCE_STACK_SPARSE;
	}
	if (bytes - 1 < cap) {
		flags |= ML_EVIDENCE_STACK_WHOLE;
	} else {
		ml_u64 slice = ml_find_slice(ML_SP(regs));

		bytes = slice & 0xffffffff;
		flags |= slice >> 32;
		if (options.alternate_stack && ml_is_handler(thread)) { /* its stack is never known beforehand */
			if (ml_send_interrupted(thread, block, key))
				return ML_SEND_FULL;
			flags |= ML_EVIDENCE_INTERRUPTED;
		}
	}
	result = ml_send_slice(regs, thread, block, address, key, bytes, flags, cap);
	if (result != ML_SEND_FAULT)
		return result;
	return ml_send_pages(regs, thread, block);
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
