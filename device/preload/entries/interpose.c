// SPDX-License-Identifier: Apache-2.0
/*
 * The allocation functions that the target calls. Each calls the original and reports to the recorder; the size of a
 * block and the success of a call are determined here.
 */

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/tail_call.h"
#include "preload/entries/originals.h"
#include "preload/recorder/recorder.h"

#define HANDLER __attribute__((visibility("hidden"), used))
#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))
#define TOO_MUCH (~(size_t)0 >> 1)

ML_ENTRY(ml_entry_malloc, ml_handle_malloc);
ML_ENTRY(ml_entry_calloc, ml_handle_calloc);
ML_ENTRY(ml_entry_realloc, ml_handle_realloc);
ML_ENTRY(reallocarray, ml_handle_reallocarray);
ML_ENTRY(posix_memalign, ml_handle_posix_memalign);
ML_ENTRY(memalign, ml_handle_memalign);
ML_ENTRY(aligned_alloc, ml_handle_aligned_alloc);
ML_ENTRY(valloc, ml_handle_valloc);
ML_ENTRY(pvalloc, ml_handle_pvalloc);

static inline void *record(enum ml_function function, void *pointer, size_t size, const struct ml_registers *registers)
{
	if (pointer && ml_recorder_is_on())
		ml_recorder_alloc(function, pointer, size, NULL, registers);
	return pointer;
}

HANDLER void *ml_handle_malloc(size_t size, UNUSED size_t b, UNUSED size_t c, const struct ml_registers *registers)
{
	if (!ml_originals_ready())
		return ml_arena_alloc(0, size);
	return record(ML_FN_MALLOC, ml_original.malloc(size), size, registers);
}

/*
 * Many libcs build these on other public functions, which call us again. early: the result before the originals are
 * known.
 */
#define OUTERMOST(name, function, early, size, ...)                                                                      \
	HANDLER void *ml_handle_##name(size_t a, UNUSED size_t b, UNUSED size_t c, const struct ml_registers *registers) \
	{                                                                                                                \
		size_t bytes = (size);                                                                                   \
		struct ml_thread *inside;                                                                                \
		void *result;                                                                                            \
                                                                                                                         \
		if (!ml_originals_ready())                                                                               \
			return early;                                                                                    \
		inside = ml_recorder_enter_original();                                                                   \
		result = ml_original.name(__VA_ARGS__);                                                                  \
		ml_recorder_leave_original(inside);                                                                      \
		return record(function, result, bytes, registers);                                                       \
	}

/* If it overflows, more than any heap has. */
static inline size_t product(size_t n, size_t size)
{
	size_t bytes;

	return __builtin_mul_overflow(n, size, &bytes) ? ~(size_t)0 : bytes;
}

OUTERMOST(calloc, ML_FN_CALLOC, ml_arena_alloc(0, product(a, b)), (a) * (b), a, b)
OUTERMOST(memalign, ML_FN_MEMALIGN, ml_arena_alloc(a, b), b, a, b)
OUTERMOST(aligned_alloc, ML_FN_ALIGNED_ALLOC, ml_arena_alloc(a, b), b, a, b)
OUTERMOST(valloc, ML_FN_VALLOC, ml_arena_alloc(4096, a), a, a)
OUTERMOST(pvalloc, ML_FN_PVALLOC, ml_arena_alloc(4096, a), a, a)

/* Moves a block from the arena, which never reclaims memory, to the real heap. */
static void *move_from_arena(void *old, size_t size)
{
	void *new = ml_originals_ready() ? ml_original.malloc(size) : ml_arena_alloc(0, size);
	size_t old_size = ml_arena_size(old);

	if (new)
		ml_copy(new, old, old_size < size ? old_size : size);
	return new;
}

/*
 * Claims the old block before the real call: afterwards another thread may own its address. NULL for size 0 means freed
 * (glibc, bionic); otherwise NULL means that nothing changed.
 */
static void *resize(enum ml_function function, void *old, size_t n, size_t unit, const struct ml_registers *registers)
{
	size_t bytes;
	int overflows = __builtin_mul_overflow(n, unit, &bytes);
	struct ml_entry block;
	int was_known = 0;
	struct ml_thread *inside;
	void *new;

	if (ml_arena_owns(old) || !ml_originals_ready())
		return overflows ? NULL :
		       old       ? record(function, move_from_arena(old, bytes), bytes, registers) :
				   ml_arena_alloc(0, bytes);
	if (old && ml_recorder_is_on())
		was_known = ml_recorder_claim(old, registers->return_address, &block);
	inside = ml_recorder_enter_original();
	if (overflows) /* called for its errno; bionic has it since API 29 */
		new = ml_original.reallocarray ? ml_original.reallocarray(old, n, unit) : ml_original.realloc(old, TOO_MUCH);
	else
		new = ml_original.realloc(old, bytes);
	ml_recorder_leave_original(inside);
	if (was_known && !new && (overflows || bytes))
		ml_recorder_restore(ML_UNTAG(old), &block);
	else if (was_known)
		ml_recorder_freed(new ? ML_FN_UNKNOWN : function, old, &block);
	if (new && ml_recorder_is_on())
		ml_recorder_alloc(function, new, bytes, old, registers);
	return new;
}

HANDLER void *ml_handle_realloc(void *old, size_t size, UNUSED size_t c, const struct ml_registers *registers)
{
	return resize(ML_FN_REALLOC, old, size, 1, registers);
}

HANDLER void *ml_handle_reallocarray(void *old, size_t n, size_t size, const struct ml_registers *registers)
{
	return resize(ML_FN_REALLOCARRAY, old, n, size, registers);
}

HANDLER int ml_handle_posix_memalign(void **pointer, size_t alignment, size_t size, const struct ml_registers *registers)
{
	struct ml_thread *inside;
	int error;

	if (!ml_originals_ready()) {
		*pointer = ml_arena_alloc(alignment, size);
		return *pointer ? 0 : ENOMEM;
	}
	inside = ml_recorder_enter_original();
	error = ml_original.posix_memalign(pointer, alignment, size);
	ml_recorder_leave_original(inside);
	if (!error)
		record(ML_FN_POSIX_MEMALIGN, *pointer, size, registers);
	return error;
}

/* ---- past the recorder while it samples ---------------------------------------------------------------- */

HANDLER void *ml_entry_malloc(size_t size);
HANDLER void *ml_entry_calloc(size_t n, size_t size);
HANDLER void *ml_entry_realloc(void *old, size_t size);

static inline int is_sampling(void)
{
	return __atomic_load_n(&ml_recorder_is_sampling, __ATOMIC_RELAXED);
}

static inline int skips_alloc(size_t size, void *return_address)
{
	return __builtin_expect(is_sampling(), 0) && ml_recorder_skips_alloc(size, (ml_u64)(unsigned long)return_address);
}

static inline int skips_free(const void *pointer, void *return_address)
{
	return __builtin_expect(is_sampling(), 0) && !ml_arena_owns(pointer) &&
	       ml_recorder_skips_free(pointer, (ml_u64)(unsigned long)return_address);
}

EXPORT void *malloc(size_t size)
{
	if (skips_alloc(size, __builtin_return_address(0)))
		TAIL return ml_original.malloc(size);
	TAIL return ml_entry_malloc(size);
}

/* Some libcs call malloc here; it must be skipped too, since only the outermost call draws a sample. */
EXPORT void *calloc(size_t n, size_t size)
{
	size_t bytes;

	if (is_sampling() && !__builtin_mul_overflow(n, size, &bytes) && skips_alloc(bytes, __builtin_return_address(0))) {
		struct ml_thread *inside = ml_recorder_enter_original();
		void *pointer = ml_original.calloc(n, size);

		ml_recorder_leave_original(inside);
		return pointer;
	}
	TAIL return ml_entry_calloc(n, size);
}

EXPORT void *realloc(void *old, size_t size)
{
	if (is_sampling() && skips_free(old, __builtin_return_address(0)) && skips_alloc(size, __builtin_return_address(0))) {
		struct ml_thread *inside = ml_recorder_enter_original();

		old = ml_original.realloc(old, size);
		ml_recorder_leave_original(inside);
		return old;
	}
	TAIL return ml_entry_realloc(old, size);
}

/* ---- the ways to free --------------------------------------------------------------------------------- */

/* Releases the block. Returns 0 if the pointer must not reach the original. */
static inline int forget(enum ml_function function, void *pointer, void *return_address)
{
	struct ml_entry block;

	if (!pointer || ml_arena_owns(pointer) || !ml_originals_ready())
		return 0;
	if (!ml_recorder_is_on())
		return 1;
	__builtin_prefetch((const char *)pointer - 2 * sizeof(size_t)); /* the allocator's header of the block */
	if (ml_recorder_remove(pointer, (ml_u64)(unsigned long)return_address, &block))
		ml_recorder_freed(function, pointer, &block);
	return 1;
}

EXPORT void free(void *pointer)
{
	if (skips_free(pointer, __builtin_return_address(0)))
		TAIL return ml_original.free(pointer);
	if (forget(ML_FN_FREE, pointer, __builtin_return_address(0)))
		ml_original.free(pointer);
}

EXPORT void cfree(void *pointer)
{
	if (forget(ML_FN_CFREE, pointer, __builtin_return_address(0)))
		ml_original.free(pointer);
}

/* C23. Allocators without these functions get a plain free(), as the standard allows. */
EXPORT void free_sized(void *pointer, size_t size)
{
	if (forget(ML_FN_FREE_SIZED, pointer, __builtin_return_address(0)))
		ml_original.free_sized ? ml_original.free_sized(pointer, size) : ml_original.free(pointer);
}

EXPORT void free_aligned_sized(void *pointer, size_t alignment, size_t size)
{
	if (!forget(ML_FN_FREE_ALIGNED_SIZED, pointer, __builtin_return_address(0)))
		return;
	if (ml_original.free_aligned_sized)
		ml_original.free_aligned_sized(pointer, alignment, size);
	else
		ml_original.free(pointer);
}

EXPORT size_t malloc_usable_size(void *pointer)
{
	if (ml_arena_owns(pointer))
		return ml_arena_size(pointer);
	return pointer && ml_originals_ready() && ml_original.malloc_usable_size ? ml_original.malloc_usable_size(pointer) : 0;
}
