// SPDX-License-Identifier: Apache-2.0
#include "preload/entries/operators.h"

#include "preload/entries/originals.h"
#include "preload/freestanding/bytes.h"
#include "preload/freestanding/mappings.h"
#include "preload/recorder/recorder.h"

#define HANDLER __attribute__((visibility("hidden"), used))
#define PATH_MAX_HERE 256 /* ml_mappings_each() cuts paths at about 200 */

struct ml_operators ml_operators;

static inline int is_sampling(void)
{
	return __atomic_load_n(&ml_recorder_is_sampling, __ATOMIC_RELAXED);
}

/* If the original throws std::bad_alloc, the thread stays inside: then calls from the allocator's own code are still told apart. */
static void *acquire(void *(*original)(size_t, size_t, size_t), size_t size, size_t more, size_t most,
		     const struct ml_registers *registers)
{
	struct ml_thread *inside;
	void *pointer;

	if (is_sampling() && ml_recorder_skips_alloc(size, registers->return_address))
		return original(size, more, most);
	inside = ml_recorder_enter_original();
	pointer = original(size, more, most);
	ml_recorder_leave_original(inside);
	if (pointer && ml_recorder_is_on())
		ml_recorder_alloc(ML_FN_MALLOC, pointer, size, NULL, registers);
	return pointer;
}

static void release(void (*original)(void *, size_t, size_t), void *pointer, size_t more, size_t most, void *return_address)
{
	struct ml_thread *inside;
	struct ml_entry block;
	ml_u64 caller = (ml_u64)(unsigned long)return_address;

	if (pointer && ml_recorder_is_on() && !(is_sampling() && ml_recorder_skips_free(pointer, caller)) &&
	    ml_recorder_remove(pointer, caller, &block))
		ml_recorder_freed(ML_FN_FREE, pointer, &block);
	inside = ml_recorder_enter_original();
	original(pointer, more, most);
	ml_recorder_leave_original(inside);
}

/* NULL means that nothing changed. */
static void *resize(void *(*original)(void *, size_t, size_t), void *old, size_t size, size_t flags,
		    const struct ml_registers *registers)
{
	struct ml_thread *inside;
	struct ml_entry block;
	int was_known = old && ml_recorder_is_on() && ml_recorder_claim(old, registers->return_address, &block);
	void *new;

	inside = ml_recorder_enter_original();
	new = original(old, size, flags);
	ml_recorder_leave_original(inside);
	if (was_known && new)
		ml_recorder_freed(ML_FN_UNKNOWN, old, &block);
	else if (was_known)
		ml_recorder_restore(ML_UNTAG(old), &block);
	if (new && ml_recorder_is_on())
		ml_recorder_alloc(ML_FN_REALLOC, new, size, old, registers);
	return new;
}

#define NEW(name)                                                                                                   \
	ML_ENTRY(ml_entry_##name, ml_handle_##name);                                                                \
	HANDLER void *ml_handle_##name(size_t size, size_t more, size_t most, const struct ml_registers *registers) \
	{                                                                                                           \
		return acquire(ml_operators.name, size, more, most, registers);                                     \
	}
ML_OPERATORS_NEW(NEW)

#define DELETE(name)                                                                          \
	HANDLER void ml_entry_##name(void *pointer, size_t more, size_t most)                 \
	{                                                                                     \
		release(ml_operators.name, pointer, more, most, __builtin_return_address(0)); \
	}
ML_OPERATORS_DELETE(DELETE)

#define RESIZE(name)                                                                                               \
	ML_ENTRY(ml_entry_##name, ml_handle_##name);                                                               \
	HANDLER void *ml_handle_##name(void *old, size_t size, size_t flags, const struct ml_registers *registers) \
	{                                                                                                          \
		return resize(ml_operators.name, old, size, flags, registers);                                     \
	}
ML_OPERATORS_RESIZE(RESIZE)

/* ---- whose they are ------------------------------------------------------------------------------------- */

struct search {
	unsigned long address;
	char path[PATH_MAX_HERE];
};

static long find_path(void *context, const struct ml_own_mapping_line *line)
{
	struct search *search = context;
	size_t length = ml_length(line->path);

	if (search->address < line->range.low || search->address >= line->range.high || length >= sizeof(search->path))
		return 0;
	ml_copy(search->path, line->path, length + 1);
	return 1;
}

static int is_of_the_same_file(const void *malloc, const void *other)
{
	struct search first = { (unsigned long)malloc, "" };
	struct search second = { (unsigned long)other, "" };

	return second.address && ml_mappings_each(find_path, &first) == 1 && ml_mappings_each(find_path, &second) == 1 &&
	       ml_is_same_text(first.path, second.path);
}

int ml_operators_are_the_allocator_s(void)
{
	void *malloc = (void *)ml_original.malloc;

	return is_of_the_same_file(malloc, ml_next_operator_new) || is_of_the_same_file(malloc, ml_next_sdallocx);
}
