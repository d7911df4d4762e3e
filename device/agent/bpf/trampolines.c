// SPDX-License-Identifier: Apache-2.0
#include "agent/bpf/trampolines.h"

#include <string.h>

struct hidden {
	const struct ml_fixup *fixups;
	ml_u64 n;
};

/* The return address behind the trampoline at an address: it lies in the innermost frame of a pending call that ends above it. */
static ml_u64 original(const struct hidden *hidden, ml_u64 address, ml_u64 trampoline, ml_u64 signature_mask)
{
	ml_u64 end = ~0ull, value = trampoline;

	for (ml_u64 i = 0; i < hidden->n; i++) {
		const struct ml_fixup *fixup = &hidden->fixups[i];

		/* a tail call's own return address is the trampoline too, and its frame ends where the caller's does */
		if (fixup->slot_address <= address || fixup->slot_address >= end ||
		    ml_strip_signature(fixup->value, signature_mask) == trampoline)
			continue;
		end = fixup->slot_address;
		value = fixup->value;
	}
	return value;
}

/* Restores every copy of the saved link register. */
static void undo_saved(const struct ml_evidence *record, ml_u64 *stack, const struct hidden *hidden, ml_u64 trampoline,
		       ml_u64 signature_mask)
{
	for (ml_u32 i = 0; i < record->stack_bytes / 8; i++)
		if (ml_strip_signature(stack[i], signature_mask) == trampoline)
			stack[i] = original(hidden, record->stack_address + 8ull * i, trampoline, signature_mask);
}

/* Restores the return addresses that calls pushed. */
static void undo_pushed(const struct ml_evidence *record, ml_u64 *stack, const struct hidden *hidden)
{
	for (ml_u64 i = 0; i < hidden->n; i++) {
		ml_u64 offset = hidden->fixups[i].slot_address - record->stack_address;

		if (offset % 8 == 0 && offset / 8 < record->stack_bytes / 8)
			stack[offset / 8] = hidden->fixups[i].value;
	}
}

static bool is_sound(const struct ml_evidence *record, const struct ml_cfi_arch *arch, ml_u64 bytes)
{
	ml_u64 needed = sizeof(*record) + record->n_registers * sizeof(ml_u64);

	if (!(record->flags & ML_EVIDENCE_STACK_SPARSE))
		needed += record->stack_bytes;
	return record->n_fixups <= ML_FIXUPS && record->n_registers > arch->link_slot && record->n_registers <= 64 &&
	       needed <= bytes && bytes <= ML_TRAMPOLINES_BYTES;
}

static struct ml_bpf_returns *slot_of(struct ml_trampolines *trampolines, ml_u64 sequence)
{
	return &trampolines->announced[(sequence ^ sequence >> ML_BPF_SEQUENCE_SHIFT) % ML_RETURNS_ANNOUNCED];
}

void ml_trampolines_announce(struct ml_trampolines *trampolines, const struct ml_bpf_returns *returns)
{
	if (returns->n <= ML_PENDING)
		*slot_of(trampolines, returns->sequence) = *returns;
}

/* All pending calls if they were announced, else those in the record. */
static struct hidden hidden_by(struct ml_trampolines *trampolines, const struct ml_evidence *record)
{
	const struct ml_bpf_returns *announced = slot_of(trampolines, record->sequence);

	if (record->flags & ML_EVIDENCE_FIXUPS_CUT && announced->sequence == record->sequence)
		return (struct hidden){ announced->fixups, announced->n };
	return (struct hidden){ record->fixups, record->n_fixups };
}

const struct ml_evidence *ml_trampolines_undo(struct ml_trampolines *trampolines, const struct ml_cfi_arch *arch,
					      const struct ml_evidence *record, ml_u64 bytes)
{
	struct ml_evidence *copy = (void *)trampolines->room;
	ml_u64 *registers = (ml_u64 *)(copy + 1), *stack;
	struct hidden hidden;

	if (!arch || bytes < sizeof(*record) || !record->n_fixups || !is_sound(record, arch, bytes))
		return record;
	hidden = hidden_by(trampolines, record);
	if (!arch->link_slot && hidden.fixups == record->fixups)
		return record; /* the host restores these */
	memcpy(copy, record, bytes);
	stack = registers + copy->n_registers;
	if (!(copy->flags & ML_EVIDENCE_STACK_SPARSE)) {
		if (arch->link_slot)
			undo_saved(copy, stack, &hidden, ml_strip_signature(registers[arch->link_slot], arch->signature_mask),
				   arch->signature_mask);
		else
			undo_pushed(copy, stack, &hidden);
	}
	copy->n_fixups = 0;
	if (hidden.fixups != record->fixups)
		copy->flags &= (ml_u16)~ML_EVIDENCE_FIXUPS_CUT;
	return copy;
}
