/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A digest of the stack beyond a slice (struct ml_bpf_above), made while the thread is stopped in the probe. */
#pragma once

#include "fixups.bpf.h"

#define ML_ABOVE_WINDOWS (ML_ABOVE_BYTES_MAX / ML_BPF_ABOVE_WINDOW)

/* The next window; -1 if it cannot be read. Global, so that the verifier checks it once. */
__noinline int ml_digest_window(struct ml_bpf_above *above)
{
	struct ml_thread *thread = ml_known_thread();
	const struct ml_bpf_code *ranges = ml_code();
	const ml_u64 mask = ML_SIGNATURE_MASK;
	ml_u64 leading, pointers, address;

	if (!above || !thread || !ranges)
		return -1;
	address = above->begin + above->bytes;
	if (bpf_probe_read_user(thread->walk.words, ML_BPF_ABOVE_WINDOW, (const void *)address))
		return -1;
	leading = above->leading;
	pointers = above->pointers;
	for (ml_u32 i = 0; i < ML_BPF_ABOVE_WINDOW / 8; i++) {
		ml_u64 word = thread->walk.words[i];

		if (!ml_bpf_is_pointer(ml_strip_signature(word, mask)))
			continue;
		pointers = ml_bpf_above_mix(pointers, address + 8ull * i, word);
		if (ml_bpf_is_leading(above, ranges, word, ml_strip_signature(word, mask)))
			leading = ml_bpf_above_mix(leading, address + 8ull * i, word);
	}
	above->leading = leading;
	above->pointers = pointers;
	above->bytes += ML_BPF_ABOVE_WINDOW;
	return 0;
}

/*
 * Sends the digest of the stack from `boundary`, the slice's end. stack_end: 0 = unknown, then as far as readable. The
 * evidence that follows wakes the agent: the sooner it reads, the less has changed.
 */
__noinline int ml_send_above(ml_u64 boundary, ml_u64 stack_end, ml_u64 sequence)
{
	struct ml_thread *thread = ml_known_thread();
	struct ml_bpf_above above = { .sequence = sequence };

	if (!thread)
		return 0;
	above.begin = (boundary - ML_BPF_ABOVE_SEAM) & ~(ml_u64)(ML_BPF_ABOVE_WINDOW - 1);
	above.end = stack_end && stack_end - above.begin < ML_ABOVE_BYTES_MAX ? stack_end : above.begin + ML_ABOVE_BYTES_MAX;
	for (ml_u32 i = 0; i < ML_ABOVE_WINDOWS && above.begin + above.bytes < above.end; i++)
		if (ml_digest_window(&above))
			break;
	thread->walk.window_bytes = 0; /* its words were overwritten */
	thread->walk.wakeup = options.wakeup_flags;
	return (int)bpf_ringbuf_output(&evidence, &above, sizeof(above), options.quiet_flags);
}
