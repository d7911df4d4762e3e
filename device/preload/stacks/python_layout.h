/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where CPython keeps a thread's frames, on machines of 64 bits. Offsets in bytes, from Include/cpython/{pystate,code,unicodeobject}.h,
 * Include/cpython/frameobject.h (3.10) and Include/internal/pycore_frame.h of each version. They are constant within a minor version
 * from its first release on; builds with other object heads (Py_TRACE_REFS, free-threaded) are refused by the type of a type.
 */
#pragma once

#include "preload/segment/segment.h"

/* Which frames one C function runs. */
enum ml_python_nesting {
	ML_PYTHON_ONE_BY_ONE = 1, /* each its own, with a struct of its own on the C stack */
	ML_PYTHON_MARKED_ENTRY =
		2, /* several; the outermost is marked, and there is a struct on the C stack for each C function */
	ML_PYTHON_FRAME_OF_C = 3, /* several; the next frame further out is on the C stack and of no Python */
};

struct ml_python_layout {
	ml_u8 minor_version;
	ml_u8 nesting;  /* enum ml_python_nesting */
	ml_u8 lines;  /* enum ml_python_lines */
	ml_u8 unit_bytes;     /* of the instruction's number; 0 = it is an address */
	ml_u16 thread_cframe; /* struct _PyCFrame of the innermost C function; 0 = there is none */
	ml_u16 thread_frame;  /* 0 = in the cframe */
	ml_u16 cframe_frame;
	ml_u16 cframe_previous;
	ml_u16 frame_previous;
	ml_u16 frame_code;
	ml_u16 frame_instruction;
	ml_u16 frame_mark; /* is_entry, or owner */
	ml_u16 code_function;
	ml_u16 code_file;
	ml_u16 code_first_line;
	ml_u16 code_table;
	ml_u16 code_instructions;
	ml_u16 ascii_text; /* sizeof(PyASCIIObject) */
	ml_u16 other_text; /* sizeof(PyCompactUnicodeObject) */
};

#define ML_PYTHON_OWNED_BY_C 3u /* enum _frameowner: FRAME_OWNED_BY_CSTACK */

/* The same in all. */
#define ML_PYTHON_TYPE 8u /* PyObject.ob_type */
#define ML_PYTHON_SIZE 16u /* PyVarObject.ob_size, PyASCIIObject.length */
#define ML_PYTHON_BYTES 32u /* PyBytesObject.ob_sval */
#define ML_PYTHON_TEXT_STATE 32u /* PyASCIIObject.state: bytes of a character << 2, is compact << 5, is ASCII << 6 */

static const struct ml_python_layout ml_python_layouts[] = {
	{ 10, ML_PYTHON_ONE_BY_ONE, ML_PYTHON_LINETABLE, 2, 48, 24, 0, 8, 24, 32, 96, 0, 112, 104, 40, 120, 0, 48, 72 },
	{ 11, ML_PYTHON_MARKED_ENTRY, ML_PYTHON_LOCATIONS, 0, 56, 0, 8, 16, 48, 32, 56, 68, 128, 112, 72, 136, 184, 48, 72 },
	{ 12, ML_PYTHON_FRAME_OF_C, ML_PYTHON_LOCATIONS, 0, 56, 0, 0, 8, 8, 0, 56, 70, 128, 112, 68, 136, 192, 40, 56 },
	{ 13, ML_PYTHON_FRAME_OF_C, ML_PYTHON_LOCATIONS, 0, 0, 72, 0, 0, 8, 0, 56, 70, 128, 112, 68, 136, 200, 40, 56 },
};

/*
 * The number of the function in Python of the code object at an address (python_code.c); 0 = the agent takes no record. A function is
 * described to the agent once, and again where its number was given to another. The caller holds ML_OWNER_BUSY.
 */
ml_u32 ml_python_code_number(const struct ml_view *view, struct ml_thread *thread, const struct ml_python_layout *layout,
			     ml_u64 code);
