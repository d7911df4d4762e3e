/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* The part of the wire format for stacks that run Python. Like wire.h, which includes it. */
#pragma once

/* How a code object's table gives the line of an instruction. */
enum ml_python_lines {
	ML_PYTHON_LINETABLE = 1, /* pairs of an instruction's and a line's difference (CPython 3.10 Objects/lnotab_notes.txt) */
	ML_PYTHON_LOCATIONS = 2, /* entries of a location (CPython 3.11 Objects/locations.md) */
};

#define ML_PYTHON_TEXT_MAX 1024u
#define ML_PYTHON_TABLE_MAX 32768u

/*
 * One function in Python, sent before the first frame in it or a little later. Followed by the qualified name of the function and
 * the file's name in UTF-8, cut at ML_PYTHON_TEXT_MAX bytes each, the table of lines, cut at ML_PYTHON_TABLE_MAX, then zero bytes to
 * a multiple of 8.
 */
struct ml_python_code {
	ml_u32 record_bytes;
	ml_u32 pid;
	ml_u32 code; /* its number in the process, from 1 */
	ml_u32 first_line;
	ml_u16 function_bytes;
	ml_u16 file_bytes;
	ml_u16 table_bytes;
	ml_u16 lines; /* enum ml_python_lines */
};

struct ml_python_frame {
	ml_u64 stack_address; /* within the stack frame of the C function that runs this frame and not its caller; 0 = it runs both */
	ml_u32 code; /* of struct ml_python_code */
	ml_u32 offset; /* of the instruction in the code, in bytes; before 3.13 of the end of the one that runs */
};

#define ML_PYTHON_FRAMES_MAX 128u

/* The last part of the record if ML_EVIDENCE_PYTHON_FRAMES is set: the frames, innermost first. */
struct ml_python_frames {
	ml_u32 n_frames; /* at most ML_PYTHON_FRAMES_MAX */
	ml_u32 is_cut; /* 1: there are more further out */
	struct ml_python_frame frames[];
};

ML_ASSERT_SIZE(struct ml_python_code, 24);
ML_ASSERT_SIZE(struct ml_python_frame, 16);
ML_ASSERT_SIZE(struct ml_python_frames, 8);
