// SPDX-License-Identifier: Apache-2.0
/*
 * The allocation functions that the target calls. Each calls the original and reports to the recorder; the size of a
 * block and the success of a call are determined here.
 */
#include <stddef.h>

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/syscalls.h"
#include "preload/freestanding/tail_call.h"
#include "preload/entries/originals.h"
#include "preload/recorder/recorder.h"

#define HANDLER __attribute__((visibility("hidden"), used))
#define EXPORT __attribute__((visibility("default")))
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

/* NULL if nothing is recorded. */
static inline struct ml_thread *enter(void)
{
	return ml_recorder_is_on() ? ml_recorder_enter_original() : NULL;
}

static inline void leave(struct ml_thread *thread)
{
	if (thread)
		ml_recorder_leave_original(thread);
}

/* Many libcs build these on other public functions, which call us again. */
#define OUTERMOST(function, call, size, registers)                                                        \
	({                                                                                                \
		struct ml_thread *inside_ = enter();                                                      \
		void *result_ = ml_original.call;                                                         \
                                                                                                          \
		leave(inside_);                                                                                \
		record(function, result_, size, registers);                                               \
	})

HANDLER void *ml_handle_malloc(size_t size, size_t unused1, size_t unused2, const struct ml_registers *registers)
{
	(void)unused1;
	(void)unused2;
	if (!ml_originals_ready())
		return ml_arena_alloc(0, size);
	return record(ML_FN_MALLOC, ml_original.malloc(size), size, registers);
}

HANDLER void *ml_handle_calloc(size_t n, size_t size, size_t unused, const struct ml_registers *registers)
{
	size_t bytes;
	int overflows = __builtin_mul_overflow(n, size, &bytes);

	(void)unused;
	if (!ml_originals_ready())
		return overflows ? NULL : ml_arena_alloc(0, bytes);
	return OUTERMOST(ML_FN_CALLOC, calloc(n, size), bytes, registers);
}

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
		return overflows ? NULL : old ? record(function, move_from_arena(old, bytes), bytes, registers)
					      : ml_arena_alloc(0, bytes);
	if (old && ml_recorder_is_on())
		was_known = ml_recorder_claim(old, registers->return_address, &block);
	inside = enter();
	if (overflows) /* called for its errno; bionic has it since API 29 */
		new = ml_original.reallocarray ? ml_original.reallocarray(old, n, unit) : ml_original.realloc(old, TOO_MUCH);
	else
		new = ml_original.realloc(old, bytes);
	leave(inside);
	if (was_known && !new && (overflows || bytes))
		ml_recorder_restore(ML_UNTAG(old), &block);
	else if (was_known)
		ml_recorder_freed(new ? ML_FN_UNKNOWN : function, old, &block);
	if (new && ml_recorder_is_on())
		ml_recorder_alloc(function, new, bytes, old, registers);
	return new;
}

HANDLER void *ml_handle_realloc(void *old, size_t size, size_t unused, const struct ml_registers *registers)
{
	(void)unused;
	return resize(ML_FN_REALLOC, old, size, 1, registers);
}

HANDLER void *ml_handle_reallocarray(void *old, size_t n, size_t size, const struct ml_registers *registers)
{
	return resize(ML_FN_REALLOCARRAY, old, n, size, registers);
}

HANDLER int ml_handle_posix_memalign(void **pointer, size_t alignment, size_t size,
				     const struct ml_registers *registers)
{
	struct ml_thread *inside;
	int error;

	if (!ml_originals_ready()) {
		*pointer = ml_arena_alloc(alignment, size);
		return *pointer ? 0 : ENOMEM;
	}
	inside = enter();
	error = ml_original.posix_memalign(pointer, alignment, size);
	leave(inside);
	if (!error)
		record(ML_FN_POSIX_MEMALIGN, *pointer, size, registers);
	return error;
}

HANDLER void *ml_handle_memalign(size_t alignment, size_t size, size_t unused, const struct ml_registers *registers)
{
	(void)unused;
	if (!ml_originals_ready())
		return ml_arena_alloc(alignment, size);
	return OUTERMOST(ML_FN_MEMALIGN, memalign(alignment, size), size, registers);
}

HANDLER void *ml_handle_aligned_alloc(size_t alignment, size_t size, size_t unused,
				      const struct ml_registers *registers)
{
	(void)unused;
	if (!ml_originals_ready())
		return ml_arena_alloc(alignment, size);
	return OUTERMOST(ML_FN_ALIGNED_ALLOC, aligned_alloc(alignment, size), size, registers);
}

HANDLER void *ml_handle_valloc(size_t size, size_t unused1, size_t unused2, const struct ml_registers *registers)
{
	(void)unused1;
	(void)unused2;
	if (!ml_originals_ready())
		return ml_arena_alloc(4096, size);
	return OUTERMOST(ML_FN_VALLOC, valloc(size), size, registers);
}

HANDLER void *ml_handle_pvalloc(size_t size, size_t unused1, size_t unused2, const struct ml_registers *registers)
{
	(void)unused1;
	(void)unused2;
	if (!ml_originals_ready())
		return ml_arena_alloc(4096, size);
	return OUTERMOST(ML_FN_PVALLOC, pvalloc(size), size, registers);
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
	return __builtin_expect(is_sampling(), 0) &&
	       ml_recorder_skips_alloc(size, (ml_u64)(unsigned long)return_address);
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

	if (is_sampling() && !__builtin_mul_overflow(n, size, &bytes) &&
	    skips_alloc(bytes, __builtin_return_address(0))) {
		struct ml_thread *inside = enter();
		void *pointer = ml_original.calloc(n, size);

		leave(inside);
		return pointer;
	}
	TAIL return ml_entry_calloc(n, size);
}

EXPORT void *realloc(void *old, size_t size)
{
	if (is_sampling() && skips_free(old, __builtin_return_address(0)) &&
	    skips_alloc(size, __builtin_return_address(0))) {
		struct ml_thread *inside = enter();

		old = ml_original.realloc(old, size);
		leave(inside);
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
	if (!forget(ML_FN_FREE_SIZED, pointer, __builtin_return_address(0)))
		return;
	if (ml_original.free_sized)
		ml_original.free_sized(pointer, size);
	else
		ml_original.free(pointer);
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
	return pointer && ml_originals_ready() && ml_original.malloc_usable_size ?
		       ml_original.malloc_usable_size(pointer) :
		       0;
}
