// SPDX-License-Identifier: Apache-2.0
/*
 * The whole malloc family, for programs that bring their own: power-of-two classes, one lock. Compiled into the program with
 * hidden visibility no slot and no dynamic symbol leads to it. calloc() and realloc() use the others.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* slow_entries: others are called first. */
#ifdef OWN_malloc
#define malloc own_malloc
#define free own_free
#endif

#define CLASSES 40
#define CHUNK_BYTES (4ul << 20)

struct head { /* before every block */
	size_t size;
	struct head *next;
};

static atomic_flag is_locked = ATOMIC_FLAG_INIT;
static struct head *unused[CLASSES];
static char *chunk;
static size_t left;

static void take(void)
{
	while (atomic_flag_test_and_set(&is_locked))
		sched_yield();
}

static int class_of(size_t size)
{
	int class = 5;

	while (class < CLASSES && (1ul << class) < size + sizeof(struct head))
		class++;
	return class;
}

static struct head *carve(size_t bytes)
{
	struct head *head;

	if (bytes > left) {
		size_t wanted = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
		void *more = mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (more == MAP_FAILED)
			return NULL;
		chunk = more;
		left = wanted;
	}
	head = (struct head *)chunk;
	chunk += bytes;
	left -= bytes;
	return head;
}

void *malloc(size_t size)
{
	int class = class_of(size);
	struct head *head = NULL;

	if (class < CLASSES) {
		take();
		head = unused[class];
		if (head)
			unused[class] = head->next;
		else
			head = carve(1ul << class);
		atomic_flag_clear(&is_locked);
	}
	if (!head) {
		errno = ENOMEM;
		return NULL;
	}
	head->size = size;
	return head + 1;
}

void free(void *block)
{
	struct head *head = (struct head *)block - 1;
	int class;

	if (!block)
		return;
	class = class_of(head->size);
	take();
	head->next = unused[class];
	unused[class] = head;
	atomic_flag_clear(&is_locked);
}

void *calloc(size_t n, size_t size)
{
	size_t bytes;
	void *block = __builtin_mul_overflow(n, size, &bytes) ? NULL : malloc(bytes);

	return block ? memset(block, 0, bytes) : NULL;
}

void *realloc(void *old, size_t size)
{
	void *new = malloc(size);

	if (!old || !new)
		return new;
	memcpy(new, old, ((struct head *)old)[-1].size < size ? ((struct head *)old)[-1].size : size);
	free(old);
	return new;
}

/* Blocks are aligned to 16; more is not needed here. */
void *aligned_alloc(size_t alignment, size_t size)
{
	return alignment > 16 ? NULL : malloc(size);
}
