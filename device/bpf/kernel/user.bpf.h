/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The user's registers and stack at the entry to the kernel. */
#pragma once

#include "bpf/kernel/maps.bpf.h"

/* Evidence is due at each of a key's first blocks up to this number, then whenever the number doubles. */
#define ML_KERNEL_DUE_EACH 16
#define ML_PAGES_MAX 16

#if defined(__TARGET_ARCH_x86)
/* __USER_CS of arch/x86/include/asm/segment.h: 64-bit code. A kernel thread has no such selector. */
#define ML_IS_USER(regs) ((regs)->cs == 0x33)
/* struct pt_regs: the system call's number is in orig_ax, -1 for other entries into the kernel. */
#define ML_CALL_NUMBER_OFFSET __builtin_offsetof(struct ml_regs, orig_ax)
/* `syscall` leaves the return address in pc. */
#define ML_ENTRY_FLAGS ML_EVIDENCE_AT_RETURN
#define ML_ENTRY_REGISTERS_KNOWN ML_REGISTERS_KNOWN
#elif defined(__TARGET_ARCH_arm64)
/* PSR_MODE_EL0t of arch/arm64/include/uapi/asm/ptrace.h, without PSR_MODE32_BIT. */
#define ML_IS_USER(regs) (((regs)->pstate & 0x1f) == 0)
/* struct pt_regs of arch/arm64/include/asm/ptrace.h: `syscallno` follows struct user_pt_regs and orig_x0. */
#define ML_CALL_NUMBER_OFFSET (sizeof(struct ml_regs) + 8)
/* The pc is behind `svc`, in the same function. */
#define ML_ENTRY_FLAGS 0
/* x30, too: functions that only make the call, like libc's pipe(), have their return address nowhere else. */
#define ML_ENTRY_REGISTERS_KNOWN (ML_REGISTERS_KNOWN | 1ull << 30)
#endif

/* Fills scratch->regs and notes whether it is a system call: where a fault happens means little. */
static __always_inline void ml_find_user(struct ml_kernel_scratch *scratch)
{
	const char *regs;
	int number = -1;

	scratch->is_user = scratch->is_call = 0;
	if (!options.stack_bytes)
		return;
	regs = (const char *)bpf_task_pt_regs(bpf_get_current_task_btf());
	if (bpf_probe_read_kernel(&scratch->regs, sizeof(scratch->regs), regs) || !ML_IS_USER(&scratch->regs))
		return;
	scratch->is_user = 1;
	bpf_probe_read_kernel(&number, sizeof(number), regs + ML_CALL_NUMBER_OFFSET);
	scratch->is_call = number >= 0;
}

/* From sp to the end of the last readable page, at most a slice. */
static __noinline ml_u64 ml_user_stack_bytes(ml_u64 sp)
{
	ml_u64 page = options.page_bytes, end = (sp & ~(page - 1)) + page;
	ml_u64 word;

	for (int i = 0; i < ML_PAGES_MAX && end - sp < options.stack_bytes; i++) {
		if (bpf_probe_read_user(&word, sizeof(word), (const void *)end))
			break;
		end += page;
	}
	return end - sp < options.stack_bytes ? (end - sp) & ~7ull : options.stack_bytes;
}

struct ml_kernel_record {
	struct ml_evidence evidence;
	struct ml_regs registers;
};

static __always_inline void ml_fill_record(struct ml_kernel_record *record, struct ml_kernel_scratch *scratch, ml_u64 bytes)
{
	struct ml_evidence *evidence = &record->evidence;
	const struct ml_kernel_block *block = &scratch->block;

	__builtin_memset(evidence, 0, sizeof(*evidence));
	evidence->function = (ml_u16)block->function;
	evidence->flags = scratch->is_call ? ML_ENTRY_FLAGS : 0;
	evidence->sequence = block->sequence;
	evidence->timestamp_ns = block->timestamp_ns;
	evidence->key = block->key;
	evidence->address = scratch->where.address;
	evidence->size = block->size;
	evidence->pid = block->pid;
	evidence->tid = block->tid;
	evidence->n_registers = ML_N_REGISTERS;
	evidence->stack_bytes = (ml_u32)bytes;
	evidence->stack_address = ML_SP(&scratch->regs);
	evidence->registers_known = ML_ENTRY_REGISTERS_KNOWN;
	__builtin_memcpy(&record->registers, &scratch->regs, sizeof(record->registers));
}

/* The ring takes sizes that the verifier knows. Returns -1 if it is full. */
#define ML_DEFINE_SEND(room)                                                                                                 \
	static __noinline int ml_send_##room(struct ml_kernel_scratch *scratch, ml_u64 bytes)                                \
	{                                                                                                                    \
		struct {                                                                                                     \
			struct ml_kernel_record record;                                                                      \
			ml_u8 stack[room];                                                                                   \
		} *out;                                                                                                      \
                                                                                                                             \
		if (!scratch)                                                                                                \
			return -1;                                                                                           \
		out = bpf_ringbuf_reserve(&evidence, sizeof(*out), 0);                                                       \
		if (!out)                                                                                                    \
			return -1;                                                                                           \
		ml_fill_record(&out->record, scratch, bytes);                                                                \
		out->record.evidence.record_bytes = sizeof(*out);                                                            \
		if (bytes > (room) || bpf_probe_read_user(out->stack, (ml_u32)bytes, (const void *)ML_SP(&scratch->regs))) { \
			out->record.evidence.stack_bytes = 0;                                                                \
			out->record.evidence.flags |= ML_EVIDENCE_STACK_FAULT;                                               \
			ml_count(ML_LOST_STACK_FAULT);                                                                       \
		}                                                                                                            \
		bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);                                                                   \
		return 0;                                                                                                    \
	}

ML_DEFINE_SEND(2048)
ML_DEFINE_SEND(4096)
ML_DEFINE_SEND(8192)
ML_DEFINE_SEND(16384)
ML_DEFINE_SEND(65528)

static __always_inline int ml_send_user(struct ml_kernel_scratch *scratch)
{
	ml_u64 bytes = ml_user_stack_bytes(ML_SP(&scratch->regs));

	if (bytes <= 2048)
		return ml_send_2048(scratch, bytes);
	if (bytes <= 4096)
		return ml_send_4096(scratch, bytes);
	if (bytes <= 8192)
		return ml_send_8192(scratch, bytes);
	if (bytes <= 16384)
		return ml_send_16384(scratch, bytes);
	return ml_send_65528(scratch, bytes);
}

/*
 * Sends the user's part if it is due. The agent finds the kernel stack of blocks without it by the key. Later evidence
 * of a key leaves half of the ring to first evidence of others.
 */
static __always_inline void ml_bring_user(struct ml_kernel_scratch *scratch, struct ml_kernel_key *entry, ml_u64 live_objects)
{
	ml_u64 due = entry->next_due;

	if (!scratch->is_user || live_objects < due || live_objects < options.first_due)
		return;
	if (due && bpf_ringbuf_query(&evidence, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(&evidence, BPF_RB_RING_SIZE) / 2)
		return;
	entry->next_due = live_objects < ML_KERNEL_DUE_EACH ? live_objects + 1 : live_objects * 2;
	if (!ml_send_user(scratch))
		return;
	entry->next_due = 0;
	ml_count(ML_LOST_RING_FULL);
}
