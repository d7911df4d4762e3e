// SPDX-License-Identifier: Apache-2.0
#include "preload/entries/python_objects.h"

#include "preload/freestanding/lock.h"
#include "preload/recorder/recorder.h"

#define HANDLER __attribute__((visibility("hidden"), used))
#define UNUSED __attribute__((unused))

/* PyMemAllocatorEx of Python 3.5 and later. */
struct allocator {
	void *context;
	void *(*malloc)(void *context, size_t size);
	void *(*calloc)(void *context, size_t n, size_t size);
	void *(*realloc)(void *context, void *old, size_t size);
	void (*free)(void *context, void *pointer);
};

/* PyMemAllocatorDomain. The third, PYMEM_DOMAIN_RAW, is malloc. */
enum { DOMAIN_MEM = 1, DOMAIN_OBJ = 2, DOMAINS = 2 };

/* Weak: bound where the program, or a library that it was linked with or loaded for all, has the interpreter. */
extern void PyMem_GetAllocator(int domain, struct allocator *allocator) __attribute__((weak));
extern void PyMem_SetAllocator(int domain, struct allocator *allocator) __attribute__((weak));
extern void *PyMem_Calloc(size_t n, size_t size) __attribute__((weak)); /* 3.5: before, allocators had no calloc */
extern void _Py_MergeZeroLocalRefcount(void *object) __attribute__((weak)); /* of free-threaded builds only (PEP 703) */

/*
 * A wrapping has entries and originals of its own, so that it never leads to itself. The second is for what was put in place of the
 * first (PYTHONMALLOC=debug sets the allocators anew) or above it (tracemalloc): we cannot tell which. If it is above, the inner one
 * finds that it is inside.
 */
#define WRAPPINGS 2u
static struct allocator originals[WRAPPINGS * DOMAINS];
static int is_used[WRAPPINGS];
static struct ml_lock lock;

static inline int is_sampling(void)
{
	return __atomic_load_n(&ml_recorder_is_sampling, __ATOMIC_RELAXED);
}

static inline int skips(size_t size, const struct ml_registers *registers)
{
	return is_sampling() && ml_recorder_skips_alloc(size, registers->return_address);
}

static inline void *record(enum ml_function function, const struct ml_thread *inside, void *pointer, size_t size, void *old,
			   const struct ml_registers *registers)
{
	if (inside && pointer)
		ml_recorder_alloc(function, pointer, size, old, registers);
	return pointer;
}

static inline void *acquire(const struct allocator *original, void *context, size_t size, const struct ml_registers *registers)
{
	int is_skipped = skips(size, registers);
	struct ml_thread *inside = ml_recorder_enter_objects();
	void *pointer = original->malloc(context, size);

	ml_recorder_leave_objects(inside);
	return record(ML_FN_MALLOC, is_skipped ? NULL : inside, pointer, size, NULL, registers);
}

static inline void *acquire_zeroed(const struct allocator *original, void *context, size_t n, size_t size,
				   const struct ml_registers *registers)
{
	size_t bytes = n * size; /* if it overflows, the original returns NULL */
	int is_skipped = skips(bytes, registers);
	struct ml_thread *inside = ml_recorder_enter_objects();
	void *pointer = original->calloc(context, n, size);

	ml_recorder_leave_objects(inside);
	return record(ML_FN_CALLOC, is_skipped ? NULL : inside, pointer, bytes, NULL, registers);
}

/* As resize() in interpose.c, but that NULL always means that nothing changed. */
static inline void *resize(const struct allocator *original, void *context, void *old, size_t size,
			   const struct ml_registers *registers)
{
	struct ml_thread *inside;
	struct ml_entry block;
	int was_known = 0;
	void *new;

	if (old && ml_recorder_is_on())
		was_known = ml_recorder_claim(old, registers->return_address, &block);
	inside = ml_recorder_enter_objects();
	new = original->realloc(context, old, size);
	ml_recorder_leave_objects(inside);
	if (was_known && new)
		ml_recorder_freed(ML_FN_UNKNOWN, old, &block);
	else if (was_known)
		ml_recorder_restore(ML_UNTAG(old), &block);
	return record(ML_FN_REALLOC, inside, new, size, old, registers);
}

static inline void release(const struct allocator *original, void *context, void *pointer, void *return_address)
{
	ml_u64 caller = (ml_u64)(unsigned long)return_address;
	struct ml_thread *inside;
	struct ml_entry block;

	if (pointer && ml_recorder_is_on() && !(is_sampling() && ml_recorder_skips_free(pointer, caller)) &&
	    ml_recorder_remove(pointer, caller, &block))
		ml_recorder_freed(ML_FN_FREE, pointer, &block);
	inside = ml_recorder_enter_objects();
	original->free(context, pointer);
	ml_recorder_leave_objects(inside);
}

/* The entries of one domain in one wrapping. They pass the context on, which is the original's. */
#define ENTRIES(number)                                                                                                       \
	extern char ml_entry_object_malloc_##number[], ml_entry_object_calloc_##number[], ml_entry_object_realloc_##number[]; \
	ML_ENTRY(ml_entry_object_malloc_##number, ml_handle_object_malloc_##number);                                          \
	ML_ENTRY(ml_entry_object_calloc_##number, ml_handle_object_calloc_##number);                                          \
	ML_ENTRY(ml_entry_object_realloc_##number, ml_handle_object_realloc_##number);                                        \
	HANDLER void *ml_handle_object_malloc_##number(void *context, size_t size, UNUSED size_t c,                           \
						       const struct ml_registers *registers)                                  \
	{                                                                                                                     \
		return acquire(&originals[number], context, size, registers);                                                 \
	}                                                                                                                     \
	HANDLER void *ml_handle_object_calloc_##number(void *context, size_t n, size_t size,                                  \
						       const struct ml_registers *registers)                                  \
	{                                                                                                                     \
		return acquire_zeroed(&originals[number], context, n, size, registers);                                       \
	}                                                                                                                     \
	HANDLER void *ml_handle_object_realloc_##number(void *context, void *old, size_t size,                                \
							const struct ml_registers *registers)                                 \
	{                                                                                                                     \
		return resize(&originals[number], context, old, size, registers);                                             \
	}                                                                                                                     \
	static void object_free_##number(void *context, void *pointer)                                                        \
	{                                                                                                                     \
		release(&originals[number], context, pointer, __builtin_return_address(0));                                   \
	}

ENTRIES(0)
ENTRIES(1)
ENTRIES(2)
ENTRIES(3)

#define ADDRESS(entry) (void *)(entry)
#define OURS(number)                                                                                \
	{ NULL, ADDRESS(ml_entry_object_malloc_##number), ADDRESS(ml_entry_object_calloc_##number), \
	  ADDRESS(ml_entry_object_realloc_##number), object_free_##number }
static const struct allocator ours[WRAPPINGS * DOMAINS] = { OURS(0), OURS(1), OURS(2), OURS(3) };

static int is_ours(const struct allocator *allocator)
{
	for (unsigned int i = 0; i < WRAPPINGS * DOMAINS; i++)
		if (allocator->malloc == ours[i].malloc)
			return 1;
	return 0;
}

/*
 * The interpreter copies the five words while its other threads may read them. The context stays as it was, so a thread that reads
 * an old function and a new context, or the reverse, finds nothing amiss.
 */
static void wrap_domains(unsigned int wrapping)
{
	for (int domain = DOMAIN_MEM; domain <= DOMAIN_OBJ; domain++) {
		struct allocator *original = &originals[wrapping * DOMAINS + (unsigned int)(domain - DOMAIN_MEM)];
		struct allocator wrapped = ours[original - originals];

		PyMem_GetAllocator(domain, original);
		wrapped.context = original->context;
		PyMem_SetAllocator(domain, &wrapped);
	}
	is_used[wrapping] = 1;
}

void ml_python_objects_wrap(void)
{
	const struct ml_view *view;
	struct allocator now;

	if (__builtin_expect(!PyMem_GetAllocator, 1) || !PyMem_SetAllocator || !PyMem_Calloc || !ml_recorder_is_on())
		return;
	view = ml_view_in_force(); /* not earlier: until the recorder is on there may be none */
	if (view->settings.flags & (ML_SETTING_NO_HEAP | ML_SETTING_NO_PYTHON_OBJECTS) || !ml_lock_try(&lock))
		return;
	if (_Py_MergeZeroLocalRefcount) { /* its collector walks the heap of the allocator that it was built with */
		view->segment->python_objects = ML_PYTHON_OBJECTS_REFUSED;
		ml_lock_release(&lock, 0);
		return;
	}
	PyMem_GetAllocator(DOMAIN_OBJ, &now);
	for (unsigned int i = 0; i < WRAPPINGS && !is_ours(&now); i++)
		if (!is_used[i]) {
			wrap_domains(i);
			break;
		}
	view->segment->python_objects = ML_PYTHON_OBJECTS_COUNTED;
	ml_lock_release(&lock, 0);
}

void ml_python_objects_unwrap(void)
{
	if (!PyMem_GetAllocator || !ml_lock_try(&lock))
		return;
	for (unsigned int wrapping = WRAPPINGS; wrapping-- > 0;) {
		unsigned int first = wrapping * DOMAINS;
		struct allocator now[DOMAINS];

		if (!is_used[wrapping])
			continue;
		PyMem_GetAllocator(DOMAIN_MEM, &now[0]);
		PyMem_GetAllocator(DOMAIN_OBJ, &now[1]);
		if (now[0].malloc != ours[first].malloc || now[1].malloc != ours[first + 1].malloc)
			continue;
		PyMem_SetAllocator(DOMAIN_MEM, &originals[first]);
		PyMem_SetAllocator(DOMAIN_OBJ, &originals[first + 1]);
		is_used[wrapping] = 0;
	}
	ml_lock_release(&lock, 0);
}
