// SPDX-License-Identifier: Apache-2.0
#include "trampolines.h"

#include <stdbool.h>
#include <string.h>

/* What the trampoline at an address stands for: it lies in the innermost frame of a pending call that ends above it. */
static ml_u64 original(const struct ml_evidence *record, ml_u64 address, ml_u64 trampoline, ml_u64 mask)
{
	ml_u64 end = ~0ull, value = trampoline;

	for (int i = 0; i < record->n_fixups; i++) {
		const struct ml_fixup *fixup = &record->fixups[i];

		/* a tail call's own return address is the trampoline too, and its frame ends where the caller's does */
		if (fixup->slot_address <= address || fixup->slot_address >= end || (fixup->value & mask) == trampoline)
			continue;
		end = fixup->slot_address;
		value = fixup->value;
	}
	return value;
}

static void undo(struct ml_evidence *record, ml_u64 *stack, ml_u64 trampoline, ml_u64 mask)
{
	for (ml_u32 i = 0; i < record->stack_bytes / 8; i++)
		if ((stack[i] & mask) == trampoline)
			stack[i] = original(record, record->stack_address + 8ull * i, trampoline, mask);
}

static bool is_sound(const struct ml_evidence *record, const struct ml_cfi_arch *arch, ml_u64 bytes)
{
	ml_u64 needed = sizeof(*record) + record->n_registers * sizeof(ml_u64);

	if (!(record->flags & ML_EVIDENCE_STACK_SPARSE))
		needed += record->stack_bytes;
	return record->n_fixups <= ML_FIXUPS && record->n_registers > arch->link_slot && record->n_registers <= 64 &&
	       needed <= bytes && bytes <= ML_TRAMPOLINES_BYTES;
}

const struct ml_evidence *ml_trampolines_undo(struct ml_trampolines *trampolines, const struct ml_cfi_arch *arch,
					      const struct ml_evidence *record, ml_u64 bytes)
{
	struct ml_evidence *copy = (void *)trampolines->room;
	ml_u64 *registers = (ml_u64 *)(copy + 1);

	if (!arch || !arch->link_slot || bytes < sizeof(*record) || !record->n_fixups || !is_sound(record, arch, bytes))
		return record;
	memcpy(copy, record, bytes);
	if (!(copy->flags & ML_EVIDENCE_STACK_SPARSE))
		undo(copy, registers + copy->n_registers, registers[arch->link_slot] & arch->code_mask, arch->code_mask);
	copy->n_fixups = 0;
	return copy;
}
