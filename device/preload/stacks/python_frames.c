// SPDX-License-Identifier: Apache-2.0
#include "preload/stacks/python_frames.h"

#include "preload/freestanding/syscalls.h"
#include "preload/stacks/python_layout.h"

int ml_python_state = ML_PYTHON_UNTRIED;

#if __SIZEOF_POINTER__ == 8

#define HASHED_MAX (2 * ML_PYTHON_FRAMES_MAX) /* with those of C */
#define LOOKED_AT_MAX 8 /* frames that must be as the layout says before any is trusted */

static const struct ml_python_layout *layout;

/* Weak: see python_objects.c. Every CPython 3 exports them. */
extern const char *Py_GetVersion(void) __attribute__((weak));
extern void *PyGILState_GetThisThreadState(void) __attribute__((weak)); /* reads one pthread_getspecific() */
extern char PyType_Type[] __attribute__((weak)), PyCode_Type[] __attribute__((weak)), PyUnicode_Type[] __attribute__((weak));
extern char PyBytes_Type[] __attribute__((weak));
/* The first until 3.12, the second from 3.13 on. They read one word. */
extern int _Py_IsFinalizing(void) __attribute__((weak)), Py_IsFinalizing(void) __attribute__((weak));

/* A walk from the innermost frame outwards. */
struct cursor {
	const struct ml_caller *caller;
	ml_u64 frame; /* the next */
	ml_u64 cframe;
	ml_u64 low; /* C functions further out are at higher addresses */
	int is_careful; /* nothing is trusted yet: reads must not fault */
};

struct found {
	ml_u64 code;
	ml_u64 instruction; /* number or address */
	ml_u64 stack_address;
};

static inline ml_u64 word_at(const struct cursor *cursor, ml_u64 address)
{
	ml_u64 word = 0;

	if (__builtin_expect(!cursor->is_careful, 1))
		return *(const ml_u64 *)(unsigned long)address;
	return ml_read_memory(&word, address, sizeof(word)) == sizeof(word) ? word : 0;
}

static inline ml_u8 byte_at(const struct cursor *cursor, ml_u64 address)
{
	return (ml_u8)(word_at(cursor, address & ~7ull) >> (address & 7) * 8);
}

/* Whether the address is of a C function further out than the last. Switchers of stacks may leave others behind. */
static inline int is_on_stack(struct cursor *cursor, ml_u64 address)
{
	if (address % 8 || address < cursor->low || address >= cursor->caller->stack_end)
		return 0;
	cursor->low = address + 8;
	return 1;
}

static inline int is_finalizing(void)
{
	return Py_IsFinalizing ? Py_IsFinalizing() : _Py_IsFinalizing();
}

static inline int is_of_c(const struct cursor *cursor, ml_u64 frame)
{
	return frame && frame % 8 == 0 && byte_at(cursor, frame + layout->frame_mark) == ML_PYTHON_OWNED_BY_C;
}

/* Goes on to a frame in Python. Returns the address of the first frame of C on the way; several follow each other while a C function
   gives up the variables of the last frame that it has run. */
static inline ml_u64 leave_frames_of_c(struct cursor *cursor)
{
	ml_u64 first = 0;

	while (is_of_c(cursor, cursor->frame)) {
		if (!is_on_stack(cursor, cursor->frame)) {
			cursor->frame = 0;
			break;
		}
		first = first ? first : cursor->frame;
		cursor->frame = word_at(cursor, cursor->frame + layout->frame_previous);
	}
	return first;
}

/*
 * When the interpreter ends, it frees the states of other threads, while they may still run C functions without its lock. It says
 * so before, so what was read is as it was if it has not said so. A state may also be run by a thread other than the one it belongs to.
 */
static inline struct cursor begin(const struct ml_caller *caller, int is_careful)
{
	ml_u64 thread = (ml_u64)(unsigned long)PyGILState_GetThisThreadState(), cframe = 0, frame = 0;
	struct cursor cursor = { .caller = caller, .low = caller->stack_pointer, .is_careful = is_careful };

	if (!thread)
		return cursor;
	if (layout->thread_cframe)
		cframe = word_at(&cursor, thread + layout->thread_cframe);
	if (layout->thread_frame)
		frame = word_at(&cursor, thread + layout->thread_frame);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (is_finalizing() || (layout->thread_cframe && (cframe < cursor.low || cframe >= caller->stack_end)))
		return cursor;
	cursor.cframe = cframe;
	cursor.frame = layout->thread_frame ? frame : word_at(&cursor, cframe + layout->cframe_frame);
	if (layout->nesting == ML_PYTHON_FRAME_OF_C)
		leave_frames_of_c(&cursor);
	return cursor;
}

/* The address of the C function that has run the frame just found, if that has run no frame further out. Goes on to the next. */
static inline ml_u64 leave_c_function(struct cursor *cursor, int is_outermost)
{
	ml_u64 address = cursor->cframe;

	if (!is_outermost || !address || !is_on_stack(cursor, address))
		return 0;
	cursor->cframe = word_at(cursor, address + layout->cframe_previous);
	return address;
}

/* Returns 0 after the outermost frame. */
static inline int next(struct cursor *cursor, struct found *found)
{
	ml_u64 frame = cursor->frame;

	if (!frame || frame % 8)
		return 0;
	found->code = word_at(cursor, frame + layout->frame_code);
	found->instruction = word_at(cursor, frame + layout->frame_instruction);
	cursor->frame = word_at(cursor, frame + layout->frame_previous);
	if (layout->nesting == ML_PYTHON_FRAME_OF_C) {
		found->stack_address = leave_frames_of_c(cursor);
	} else {
		found->stack_address = leave_c_function(cursor, layout->nesting == ML_PYTHON_ONE_BY_ONE ||
									byte_at(cursor, frame + layout->frame_mark) != 0);
	}
	if (layout->unit_bytes) /* an int of 32 bits, -1 before the first instruction */
		found->instruction = (ml_u32)found->instruction;
	return 1;
}

static const struct ml_python_layout *layout_of(const char *version)
{
	unsigned int minor = 0;

	if (version[0] != '3' || version[1] != '.')
		return NULL;
	for (version += 2; *version >= '0' && *version <= '9'; version++)
		minor = minor * 10 + (unsigned int)(*version - '0');
	for (unsigned int i = 0; i < sizeof(ml_python_layouts) / sizeof(ml_python_layouts[0]); i++)
		if (ml_python_layouts[i].minor_version == minor)
			return &ml_python_layouts[i];
	return NULL;
}

static ml_u64 type_of(const struct cursor *cursor, ml_u64 object)
{
	return object && object % 8 == 0 ? word_at(cursor, object + ML_PYTHON_TYPE) : 0;
}

#define ADDRESS(symbol) ((ml_u64)(unsigned long)(symbol))

/* Compares heads of objects and code of frames with the layout, by reads that cannot fault. UNTRIED: the thread has no frame yet. */
static enum ml_python_state look(const struct ml_caller *caller)
{
	struct cursor cursor = begin(caller, 1);
	struct found found;
	int n = 0;

	if (type_of(&cursor, ADDRESS(PyCode_Type)) != ADDRESS(PyType_Type))
		return ML_PYTHON_REFUSED;
	for (; n < LOOKED_AT_MAX && next(&cursor, &found); n++) {
		ml_u64 function = word_at(&cursor, found.code + layout->code_function);
		ml_u64 file = word_at(&cursor, found.code + layout->code_file);
		ml_u64 table = word_at(&cursor, found.code + layout->code_table);

		if (type_of(&cursor, found.code) != ADDRESS(PyCode_Type) ||
		    type_of(&cursor, function) != ADDRESS(PyUnicode_Type) ||
		    type_of(&cursor, file) != ADDRESS(PyUnicode_Type) || type_of(&cursor, table) != ADDRESS(PyBytes_Type))
			return ML_PYTHON_REFUSED;
	}
	return n ? ML_PYTHON_READ : ML_PYTHON_UNTRIED;
}

static enum ml_python_state try_to_read(const struct ml_caller *caller)
{
	const struct ml_python_layout *found;

	if (!Py_GetVersion || !PyGILState_GetThisThreadState || !PyType_Type || !PyCode_Type || !PyUnicode_Type ||
	    !PyBytes_Type)
		return ML_PYTHON_REFUSED;
	if (!Py_IsFinalizing && !_Py_IsFinalizing)
		return ML_PYTHON_REFUSED;
	if (!PyGILState_GetThisThreadState())
		return ML_PYTHON_UNTRIED;
	found = layout_of(Py_GetVersion());
	if (!found)
		return ML_PYTHON_REFUSED;
	layout = found;
	return look(caller);
}

/*
 * Runs at every allocation, so it does less than next(): it hashes frames of C like others, and recognises those on the C stack by
 * their rising addresses.
 */
static ml_u64 hash_from(const struct cursor *cursor)
{
	const ml_u32 at_code = layout->frame_code, at_instruction = layout->frame_instruction,
		     at_previous = layout->frame_previous;
	const ml_u64 mask = layout->unit_bytes ? 0xffffffffull : ~0ull;
	const ml_u64 stack = cursor->caller->stack_pointer, stack_bytes = cursor->caller->stack_end - stack;
	ml_u64 frame = cursor->frame, low = cursor->low, hash = 0;

	for (unsigned int n = 0; n < HASHED_MAX && frame && frame % 8 == 0; n++) {
		const char *at = (const char *)(unsigned long)frame;

		if (frame - stack < stack_bytes) {
			if (frame < low)
				break;
			low = frame + 8;
		}
		hash = ml_stack_mix(hash,
				    3 * *(const ml_u64 *)(at + at_code) + (*(const ml_u64 *)(at + at_instruction) & mask) + 1);
		frame = *(const ml_u64 *)(at + at_previous);
	}
	return hash;
}

/* Looks if no thread has looked before. Of threads that look at the same time, the first to finish decides for all. */
static int state_after_look(const struct ml_caller *caller)
{
	int known = __atomic_load_n(&ml_python_state, __ATOMIC_ACQUIRE), found;

	if (known != ML_PYTHON_UNTRIED)
		return known;
	found = (int)try_to_read(caller);
	if (__atomic_compare_exchange_n(&ml_python_state, &known, found, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return found;
	return known;
}

ml_u64 ml_python_hash_frames(const struct ml_view *view, const struct ml_caller *caller)
{
	struct cursor cursor;

	if (view->settings.flags & (ML_SETTING_NO_PYTHON_LINES | ML_SETTING_NO_AGENT | ML_SETTING_NO_EVIDENCE))
		return 0;
	if (state_after_look(caller) != ML_PYTHON_READ)
		return 0;
	cursor = begin(caller, 0);
	return hash_from(&cursor);
}

static ml_u32 offset_of(const struct found *found)
{
	return (ml_u32)(layout->unit_bytes ? layout->unit_bytes * found->instruction :
					     found->instruction - found->code - layout->code_instructions);
}

void ml_python_store(const struct ml_view *view, struct ml_thread *thread, const struct ml_caller *caller,
		     struct ml_python_frames *to)
{
	struct cursor cursor = begin(caller, 0);
	struct found found;

	to->n_frames = 0;
	while (to->n_frames < ML_PYTHON_FRAMES_MAX && next(&cursor, &found) &&
	       type_of(&cursor, found.code) == ADDRESS(PyCode_Type))
		to->frames[to->n_frames++] = (struct ml_python_frame){
			.stack_address = found.stack_address,
			.code = ml_python_code_number(view, thread, layout, found.code),
			.offset = offset_of(&found),
		};
	to->is_cut = to->n_frames == ML_PYTHON_FRAMES_MAX && cursor.frame;
}

#else

ml_u64 ml_python_hash_frames(const struct ml_view *view, const struct ml_caller *caller)
{
	(void)view, (void)caller;
	__atomic_store_n(&ml_python_state, ML_PYTHON_REFUSED, __ATOMIC_RELAXED);
	return 0;
}

void ml_python_store(const struct ml_view *view, struct ml_thread *thread, const struct ml_caller *caller,
		     struct ml_python_frames *to)
{
	(void)view, (void)thread, (void)caller;
	to->n_frames = to->is_cut = 0;
}

#endif
