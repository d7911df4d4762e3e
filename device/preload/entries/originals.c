// SPDX-License-Identifier: Apache-2.0
#include "preload/entries/originals.h"

#include <sys/mman.h>

#include "preload/stacks/maps.h"
#include "preload/recorder/recorder.h"
#include "preload/freestanding/syscalls.h"

#define ARENA_BYTES 65536u
#define ARENA_ALIGN 16u
#define PAGE_BYTES 16384u /* a multiple of every page size except arm64's 64 KiB */

/* Weak: with an old glibc, targets without libdl have no dlsym(). glibc's private names serve then. */
extern void *dlsym(void *handle, const char *name) __attribute__((weak));
extern void *__libc_malloc(size_t) __attribute__((weak));
extern void *__libc_calloc(size_t, size_t) __attribute__((weak));
extern void *__libc_realloc(void *, size_t) __attribute__((weak));
extern void *__libc_memalign(size_t, size_t) __attribute__((weak));
extern void __libc_free(void *) __attribute__((weak));
extern char **environ __attribute__((weak));
extern int *__errno_location(void) __attribute__((weak)); /* glibc, musl */
extern int *__errno(void) __attribute__((weak));          /* bionic */

/* Exists on bionic only, whose 32-bit RTLD_NEXT is -2; elsewhere it is -1. */
extern int __system_property_get(const char *name, char *value) __attribute__((weak));

struct ml_originals ml_original;
int ml_originals_are_interposed;

enum { UNKNOWN, LOOKING_UP, KNOWN };

static int state;
static unsigned long look_up_thread;

/* Not in .bss: its blocks belong to the program, and a scan for references skips our own memory. */
static unsigned char *arena;
static size_t arena_used;

static unsigned char *arena_memory(void)
{
	unsigned char *memory = __atomic_load_n(&arena, __ATOMIC_ACQUIRE), *other = NULL;
	long got;

	if (memory)
		return memory;
	got = ML_MMAP(0, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	if (ml_is_error(got))
		return NULL;
	memory = (unsigned char *)got;
	if (__atomic_compare_exchange_n(&arena, &other, memory, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return memory;
	ML_SYSCALL2(munmap, memory, ARENA_BYTES);
	return other;
}

void *ml_arena_alloc(size_t alignment, size_t size)
{
	size_t old = __atomic_load_n(&arena_used, __ATOMIC_RELAXED), start;
	unsigned char *memory = arena_memory();

	if (!memory)
		return NULL;
	if (alignment < ARENA_ALIGN)
		alignment = ARENA_ALIGN;
	do {
		start = (old + sizeof(size_t) + alignment - 1) & ~(alignment - 1);
		if (size > ARENA_BYTES || start > ARENA_BYTES - size)
			return NULL;
	} while (!__atomic_compare_exchange_n(&arena_used, &old, start + size, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	((size_t *)(void *)(memory + start))[-1] = size;
	return memory + start;
}

int ml_arena_owns(const void *pointer)
{
	const unsigned char *memory = __atomic_load_n(&arena, __ATOMIC_RELAXED);

	return __builtin_expect(!!memory, 0) && (size_t)((const unsigned char *)pointer - memory) < ARENA_BYTES;
}

size_t ml_arena_size(const void *pointer)
{
	return ((const size_t *)pointer)[-1];
}

int ml_fail(int error)
{
	int *(*location)(void) = __errno_location ? __errno_location : __errno;

	if (location)
		*location() = error;
	return -1;
}

long ml_from_kernel(long result)
{
	return ml_is_error(result) ? ml_fail((int)-result) : result;
}

void *ml_next_operator_new;
void *ml_next_sdallocx;

void *ml_next_definition(const char *name)
{
	void *next = (void *)(__system_property_get && sizeof(long) == 4 ? -2L : -1L);
	/* RTLD_NEXT depends on the calling address, so this must not become a tail call. */
	void *volatile found = dlsym ? dlsym(next, name) : NULL;

	return found;
}

static void look_up(void)
{
	static const struct {
		const char *name;
		size_t offset;
	} names[] = {
#define NAME(function, result, parameters) { #function, offsetof(struct ml_originals, function) },
		ML_ALLOCATOR_FUNCTIONS(NAME) ML_EXEC_FUNCTIONS(NAME) ML_REGION_FUNCTIONS(NAME) ML_SELF_FUNCTIONS(NAME)
#undef NAME
	};
	ml_original = (struct ml_originals){ .malloc = __libc_malloc,
					     .calloc = __libc_calloc,
					     .realloc = __libc_realloc,
					     .memalign = __libc_memalign,
					     .free = __libc_free };
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *found = ml_next_definition(names[i].name);

		if (found)
			*(void **)((char *)&ml_original + names[i].offset) = found;
	}
	ml_next_operator_new = ml_next_definition(sizeof(size_t) == 8 ? "_Znwm" : "_Znwj");
	ml_next_sdallocx = ml_next_definition("sdallocx");
}

/* A program that found our function must get a result even if its libc lacks the original. */
static void *no_memory(size_t alignment, size_t size)
{
	(void)alignment;
	(void)size;
	return NULL;
}

static void *page_alloc(size_t size)
{
	return ml_original.memalign(PAGE_BYTES, size);
}

static void fill_gaps(void)
{
	if (!ml_original.memalign)
		ml_original.memalign = ml_original.aligned_alloc ? ml_original.aligned_alloc : no_memory;
	if (!ml_original.aligned_alloc)
		ml_original.aligned_alloc = ml_original.memalign;
	if (!ml_original.valloc)
		ml_original.valloc = page_alloc;
	if (!ml_original.pvalloc)
		ml_original.pvalloc = page_alloc;
}

static void note_code(void)
{
	ml_maps_allocator.address = (ml_u64)(unsigned long)ml_original.malloc;
	ml_maps_own.address = (ml_u64)(unsigned long)look_up;
}

void ml_originals_adopt(void)
{
	fill_gaps();
	note_code();
	__atomic_store_n(&state, KNOWN, __ATOMIC_RELEASE);
}

static __attribute__((noinline)) int make_ready(void)
{
	int expected = UNKNOWN;

	if (__atomic_compare_exchange_n(&state, &expected, LOOKING_UP, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		look_up_thread = ml_thread_pointer();
		look_up();
		fill_gaps();
		note_code();
		ml_originals_are_interposed = 1;
		ml_recorder_start(&environ ? environ : NULL);
		__atomic_store_n(&state, KNOWN, __ATOMIC_RELEASE);
		return 1;
	}
	if (look_up_thread == ml_thread_pointer())
		return 0;
	while (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != KNOWN)
		ML_SYSCALL0(sched_yield);
	return 1;
}

int ml_originals_ready(void)
{
	return __builtin_expect(__atomic_load_n(&state, __ATOMIC_ACQUIRE) == KNOWN, 1) || make_ready();
}
