/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The caller's registers and stack at a call's entry, for the host to unwind. */
#pragma once

#include "bpf/snoop/maps.bpf.h"

#define ML_SNOOP_PAGE 4096u /* the smallest page; larger ones end where one of these ends */
#define ML_SNOOP_PAGES 5u /* touched by any 16 KiB */

struct ml_snoop_stack {
	struct ml_evidence evidence;
	struct ml_regs registers;
	struct ml_fixup fixups[ML_SNOOP_FIXUPS]; /* evidence.n_fixups of them, applied by the agent */
};

/*
 * Readable bytes of the stack from sp, at most options.stack_bytes. Searched upwards, because another mapping above the
 * stack's end may be readable as well (the vDSO).
 */
static __noinline ml_u32 ml_slice_bytes(ml_u64 sp)
{
	ml_u32 bytes = ML_SNOOP_PAGE - (sp & (ML_SNOOP_PAGE - 1)), whole = 0;
	ml_u64 word;

	for (ml_u32 pages = 0; pages < ML_SNOOP_PAGES; pages++) {
		if (bytes > options.stack_bytes)
			bytes = options.stack_bytes;
		if (bpf_probe_read_user(&word, sizeof(word), (const void *)(sp + bytes - sizeof(word))))
			return whole;
		whole = bytes;
		bytes += ML_SNOOP_PAGE;
	}
	return whole;
}

static __noinline int ml_fill_stack(struct ml_snoop_stack *out, struct ml_snoop_thread *thread, ml_u32 number, ml_u64 call,
				    ml_u32 bytes)
{
	struct ml_evidence *evidence = &out->evidence;
	ml_u64 identity = bpf_get_current_pid_tgid();
	ml_u32 n = 0;

	if (!out || !thread)
		return 0;
	evidence->flags = 0;
	evidence->function = (ml_u16)number;
	evidence->sequence = call;
	evidence->timestamp_ns = bpf_ktime_get_ns();
	evidence->key = 0;
	evidence->address = 0;
	evidence->size = 0;
	evidence->pid = (ml_u32)(identity >> 32);
	evidence->tid = (ml_u32)identity;
	evidence->n_registers = ML_N_REGISTERS;
	evidence->stack_bytes = bytes;
	evidence->registers_known = (1ull << ML_N_REGISTERS) - 1;
	for (; n < ML_SNOOP_FIXUPS && n < thread->depth; n++) {
		const struct ml_snoop_pending *pending = &thread->pending[(thread->depth - 1 - n) & (ML_SNOOP_PENDING - 1)];

		out->fixups[n].slot_address = pending->sp;
		out->fixups[n].value = pending->return_address;
	}
	evidence->n_fixups = (ml_u16)n;
	return 0;
}

#define ML_DEFINE_SEND_STACK(room)                                                                                           \
	static __always_inline int ml_send_stack_##room(struct ml_regs *regs, struct ml_snoop_thread *thread, ml_u32 number, \
							ml_u64 call, ml_u32 bytes)                                           \
	{                                                                                                                    \
		struct {                                                                                                     \
			struct ml_snoop_stack head;                                                                          \
			ml_u8 stack[room];                                                                                   \
		} *out = bpf_ringbuf_reserve(&stacks, sizeof(*out), 0);                                                      \
                                                                                                                             \
		if (!out)                                                                                                    \
			return -1;                                                                                           \
		out->head.evidence.record_bytes = sizeof(*out);                                                              \
		out->head.evidence.stack_address = ML_SP(regs);                                                              \
		bpf_probe_read_kernel(&out->head.registers, sizeof(out->head.registers), regs);                              \
		ml_fill_stack(&out->head, thread, number, call, bytes);                                                      \
		if (bytes > (room) || bpf_probe_read_user(out->stack, bytes, (const void *)ML_SP(regs))) {                   \
			out->head.evidence.stack_bytes = 0;                                                                  \
			out->head.evidence.flags = ML_EVIDENCE_STACK_FAULT;                                                  \
		}                                                                                                            \
		bpf_ringbuf_submit(out, options.quiet_flags);                                                                \
		return 0;                                                                                                    \
	}

ML_DEFINE_SEND_STACK(2048)
ML_DEFINE_SEND_STACK(16384)

static __noinline int ml_send_stack(struct ml_regs *regs, struct ml_snoop_thread *thread, ml_u32 number, ml_u64 call)
{
	ml_u32 bytes = ml_slice_bytes(ML_SP(regs));
	int lost;

	if (!thread)
		return 0;
	lost = bytes <= 2048 ? ml_send_stack_2048(regs, thread, number, call, bytes) :
			       ml_send_stack_16384(regs, thread, number, call, bytes);
	if (lost)
		ml_count(ML_LOST_RING_FULL, 1);
	return 0;
}
