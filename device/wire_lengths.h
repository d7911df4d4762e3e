/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* Offsets and lengths of the data that follow a structure of wire.h. */
#pragma once

static inline ml_u16 *ml_sparse_stack_offsets(const struct ml_sparse_stack *sparse)
{
	return (ml_u16 *)(unsigned long)&sparse->words[sparse->n_words];
}

static inline ml_u32 ml_sparse_stack_bytes(ml_u32 n_words)
{
	return (ml_u32)(sizeof(struct ml_sparse_stack) + n_words * sizeof(ml_u64) + ((n_words * sizeof(ml_u16) + 7) & ~7ull));
}

static inline ml_u32 ml_frame_chain_bytes(ml_u32 n_frames)
{
	return (ml_u32)(sizeof(struct ml_frame_chain) + n_frames * sizeof(ml_u64));
}

static inline ml_u32 *ml_stack_above_offsets(const struct ml_stack_above *above)
{
	return (ml_u32 *)(unsigned long)&above->words[above->n_words];
}

static inline ml_u32 ml_stack_above_bytes(ml_u32 n_words)
{
	return (ml_u32)(sizeof(struct ml_stack_above) + n_words * sizeof(ml_u64) + ((n_words * sizeof(ml_u32) + 7) & ~7ull));
}

static inline ml_u32 ml_python_frames_bytes(ml_u32 n_frames)
{
	return (ml_u32)(sizeof(struct ml_python_frames) + n_frames * sizeof(struct ml_python_frame));
}
