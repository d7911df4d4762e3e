/* SPDX-License-Identifier: Apache-2.0 */
/* Records of an architecture with a link register, with calls pending under return probes. Writes what does not hold. */
#include "agent/bpf/trampolines.h"

#include <string.h>

#include "checks.h"

#define TRAMPOLINE 0x7ffffffff000ull
#define SIGNATURE 0x0035000000000000ull /* above 48 bits */
#define STACK 0x7ff0000000ull
#define WORDS 32

static const struct ml_cfi_arch with_link = { .link_slot = 2, .signature_mask = ~0ull << 48 };
static const struct ml_cfi_arch without_link = { 0 };

struct whole {
	struct ml_evidence head;
	ml_u64 registers[3];
	ml_u64 stack[WORDS];
};

static struct ml_trampolines trampolines;

/* Two calls are pending: frames end at word 10 (inner) and word 20 (outer); each has saved the trampoline. */
static struct whole two_pending(void)
{
	struct whole record = {
		.head = {
			.record_bytes = sizeof(record), .n_registers = 3, .n_fixups = 2, .stack_bytes = sizeof(record.stack),
			.stack_address = STACK,
			.fixups = { { STACK + 20 * 8, 0x400020 }, { STACK + 10 * 8, 0x400010 } },
		},
		.registers = { 0, 0, TRAMPOLINE },
	};

	record.stack[4] = TRAMPOLINE;
	record.stack[9] = TRAMPOLINE | SIGNATURE; /* signed by the callee's paciasp */
	record.stack[15] = TRAMPOLINE;
	record.stack[16] = 0x1234;
	record.stack[25] = TRAMPOLINE; /* of no pending call that is known */
	return record;
}

static const struct whole *undo(const struct whole *record)
{
	return (const void *)ml_trampolines_undo(&trampolines, &with_link, &record->head, sizeof(*record));
}

static void frames_are_told_apart(void)
{
	struct whole record = two_pending(), before = record;
	const struct whole *undone = undo(&record);

	check(undone != &record && !memcmp(&record, &before, sizeof(record)), "the record itself was changed");
	check(undone->head.n_fixups == 0, "fixups are left");
	check(undone->stack[4] == 0x400010 && undone->stack[9] == 0x400010, "the inner call's return address");
	check(undone->stack[15] == 0x400020, "the outer call's return address");
	check(undone->stack[16] == 0x1234, "another word was changed");
	check(ml_strip_signature(undone->stack[25], with_link.signature_mask) == TRAMPOLINE, "a return address was made up");
}

/* The second function was jumped to: both frames end at one place, and only the first call knows where it came from. */
static void tail_call(void)
{
	struct whole record = two_pending();

	record.head.fixups[1] = (struct ml_fixup){ STACK + 20 * 8, TRAMPOLINE };
	check(undo(&record)->stack[4] == 0x400020, "a tail call's return address");
}

static void words_of_a_walk_stay(void)
{
	struct whole record = two_pending();
	const struct whole *undone;

	record.head.flags = ML_EVIDENCE_STACK_SPARSE;
	record.head.stack_bytes = ML_STACK_BYTES_MAX / 8 * 8; /* what is walked over, not what follows */
	undone = undo(&record);
	check(undone->head.n_fixups == 0 && undone->stack[4] == TRAMPOLINE, "words of a walk were changed");
}

static void unsound_records_stay(void)
{
	struct whole record = two_pending();

	record.head.stack_bytes += 8;
	check(undo(&record) == &record, "a slice longer than its record");
	record = two_pending();
	record.head.n_fixups = ML_FIXUPS + 1;
	check(undo(&record) == &record, "more fixups than there is room for");
	record = two_pending();
	record.head.n_registers = 2;
	check(undo(&record) == &record, "no link register");
	record = two_pending();
	check(ml_trampolines_undo(&trampolines, &without_link, &record.head, sizeof(record)) == &record.head,
	      "an architecture that pushes return addresses");
}

/* On machines whose calls push return addresses, each is at the sp of its entry. */
static struct whole cut_short(ml_u64 sequence)
{
	struct whole record = two_pending();

	record.head.sequence = sequence;
	record.head.flags = ML_EVIDENCE_FIXUPS_CUT;
	return record;
}

static void all_that_were_told_are_undone(void)
{
	struct ml_bpf_returns returns = {
		.sequence = 7,
		.n = 5,
		.fixups = { { STACK + 4 * 8, 1 }, { STACK + 9 * 8, 2 }, { STACK + 15 * 8, 3 }, { STACK + 25 * 8, 4 },
			    { STACK + WORDS * 8, 5 } }, /* the last lies above the slice */
	};
	struct whole record = cut_short(7), other = cut_short(8);
	const struct whole *undone;

	ml_trampolines_announce(&trampolines, &returns);
	undone = (const void *)ml_trampolines_undo(&trampolines, &without_link, &record.head, sizeof(record));
	check(undone != &record && undone->stack[4] == 1 && undone->stack[9] == 2 && undone->stack[15] == 3 &&
		      undone->stack[25] == 4 && undone->stack[16] == 0x1234,
	      "a reported address is not at its slot");
	check(!undone->head.n_fixups && !undone->head.flags, "fixups are left of a record that needs none");
	check(ml_trampolines_undo(&trampolines, &without_link, &other.head, sizeof(other)) == &other.head,
	      "another record's return addresses");
	returns.n = ML_PENDING + 1;
	returns.sequence = 8;
	ml_trampolines_announce(&trampolines, &returns);
	check(ml_trampolines_undo(&trampolines, &without_link, &other.head, sizeof(other)) == &other.head,
	      "more calls than can be pending");
}

/* With a link register the frames are those of all reported calls: here of a third call between the two. */
static void frames_of_all_that_were_told(void)
{
	struct ml_bpf_returns returns = {
		.sequence = 9,
		.n = 3,
		.fixups = { { STACK + 10 * 8, 0x400010 }, { STACK + 16 * 8, 0x400016 }, { STACK + 20 * 8, 0x400020 } },
	};
	struct whole record = cut_short(9);
	const struct whole *undone;

	ml_trampolines_announce(&trampolines, &returns);
	undone = undo(&record);
	check(undone->stack[4] == 0x400010 && undone->stack[15] == 0x400016, "the frame of a call that has no fixup");
}

int main(void)
{
	frames_are_told_apart();
	tail_call();
	words_of_a_walk_stay();
	unsound_records_stay();
	all_that_were_told_are_undone();
	frames_of_all_that_were_told();
	return 0;
}
