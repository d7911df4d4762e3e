/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* The part of the wire format that tells of the high-water mark. Like wire.h, which includes it. */
#ifndef MEMLEAK_WIRE_HIGH_WATER_H
#define MEMLEAK_WIRE_HIGH_WATER_H

/*
 * Chunk of what the keys of a process held at its high-water mark; the latest holds. Then ml_u64 columns: key, bytes.
 * Not where a process counts samples, nor of several together.
 */
struct ml_high_water {
	ml_u64 timestamp_ns;
	ml_u64 mark;        /* bytes held in all */
	ml_u64 bound_bytes; /* never was more held than so much above it */
	ml_u32 pid;
	ml_u32 count;
	ml_u32 last; /* 1 on the last chunk */
	ml_u32 reserved;
};

ML_ASSERT_SIZE(struct ml_high_water, 40);

#endif
