// SPDX-License-Identifier: Apache-2.0
/*
 * resolve_stress LIBRARY: threads ask for frame rules in a file's code while another one maps and unmaps it, and makes
 * the list of code lines anew. Exit code 0: nothing faulted, and what was found at rest was the same for everyone.
 */
#include <elf.h>
#include "../../../support/programs/libc.h"

#include "preload/stacks/code_lines.h"
#include "preload/stacks/frame_resolve.h"

#define THREADS 3
#define MAPPINGS 300
#define STEP 61 /* bytes between addresses that are asked for */

static struct ml_segment segment;
static struct ml_frame_rule rules[ML_FRAME_RULES];
static struct ml_code_map maps[2];
static struct ml_view view = { .segment = &segment, .rules = rules, .code_maps = maps };
static char *library;
static size_t bytes, code_bytes;
static uintptr_t code;
static int fd, is_over;

/* As maps.c does it: the list that is not in force is written, and then is. */
static void read_lines(void)
{
	uint32_t old = segment.current_map, new = !old;
	struct ml_maps_line head = { (uintptr_t)library, code, 1, 0, "head", 4 };
	struct ml_maps_line line = { code, code + code_bytes, 1, 1, "code", 4 };

	ml_code_lines_clear(new);
	ml_code_lines_add(new, &head);
	ml_code_lines_add(new, &line);
	__atomic_store_n(&maps[new].revision, maps[old].revision + 1, __ATOMIC_RELAXED);
	__atomic_store_n(&segment.current_map, new, __ATOMIC_RELEASE);
}

static const struct ml_code_map *map_in_force(void)
{
	return &maps[__atomic_load_n(&segment.current_map, __ATOMIC_ACQUIRE)];
}

static void *ask(void *argument)
{
	uintptr_t self = (uintptr_t)argument;

	for (size_t at = STEP * self; !__atomic_load_n(&is_over, __ATOMIC_RELAXED);
	     at = at + STEP < code_bytes ? at + STEP : STEP) {
		struct ml_frame_rule rule;

		if (ml_frame_resolve(&view, map_in_force(), code + at, &rule) && rule.hash != ml_frame_hash(code + at, 0))
			return (void *)1;
	}
	return NULL;
}

static void *change(void *argument)
{
	for (int i = 0; i < MAPPINGS; i++) {
		/* what cannot be read stands for nothing at all, whose place another thread could take */
		if (mmap(library, bytes, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
			exit(3);
		usleep(50);
		if (mmap(library, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
			exit(3);
		read_lines();
		usleep(50);
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	return argument;
}

/* Each rule of the table is what one look-up by itself finds: of two that met, none is half the other's. */
static int check(void)
{
	int n_found = 0;

	for (size_t at = STEP; at < code_bytes; at += STEP) {
		uint64_t hash = ml_frame_hash(code + at, 0);
		struct ml_frame_rule *set = &rules[ml_frame_set(hash)], rule;

		for (int i = 0; i < ML_FRAME_SET_RULES; i++) {
			if (set[i].hash != hash)
				continue;
			if (!ml_frame_resolve(&view, map_in_force(), code + at, &rule) ||
			    rule.cfa != set[i].cfa || rule.fp_words != set[i].fp_words || rule.ra_words != set[i].ra_words)
				return 0;
			n_found += ml_frame_kind(&rule) != ML_FRAME_NONE;
		}
	}
	printf("%d rules\n", n_found);
	return n_found > 100;
}

/* The file's addresses are its offsets, as ld makes it. */
static void find_code(void)
{
	const Elf64_Ehdr *header = (const void *)library;
	const Elf64_Phdr *segment = (const void *)(library + header->e_phoff);

	for (int i = 0; i < header->e_phnum; i++)
		if (segment[i].p_type == PT_LOAD && segment[i].p_flags & PF_X) {
			code = (uintptr_t)library + segment[i].p_offset;
			code_bytes = segment[i].p_filesz;
		}
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS + 1];
	struct stat status;
	void *result;
	int code = 0;

	fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
	if (fd < 0 || fstat(fd, &status))
		return 2;
	bytes = (size_t)status.st_size;
	library = mmap(NULL, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	find_code();
	read_lines();
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, ask, (void *)i);
	pthread_create(&threads[THREADS], NULL, change, NULL);
	for (int i = 0; i <= THREADS; i++) {
		pthread_join(threads[i], &result);
		code |= result != NULL;
	}
	return code ? 1 : check() ? 0 : 4;
}
