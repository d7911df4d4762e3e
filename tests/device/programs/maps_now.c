/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread puts argv[1] and argv[2] at the same address by turns while another reads the process's maps, argv[3] times:
 * one turn in each of these at the most, or no number of readings could tell what was there.
 * Prints how many readings named the file that was not there at the time they give.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/process/process_maps.h"

#define PAGE 4096
#define MAX_TURNS (1 << 20)
#define N_OTHERS 500 /* before that page: a reading takes as long as in a large program */

static struct {
	ml_u64 begin_ns, end_ns;
} turns[MAX_TURNS]; /* the file of turn i is argv[1 + i % 2] */
static volatile int n_turns, n_calls;
static volatile unsigned call_us; /* how long one takes here and now */
static volatile int is_over;
static char **words;
static char *page;

int ml_blocks_writev(enum ml_block_kind kind, const struct iovec *parts, int n_parts)
{
	(void)kind, (void)parts, (void)n_parts;
	return 0;
}

ml_u64 ml_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (ml_u64)now.tv_sec * 1000000000ull + (ml_u64)now.tv_nsec;
}

static void put(int fd)
{
	if (mmap(page, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
		abort();
}

static void *take_turns(void *unused)
{
	int fds[2] = { open(words[1], O_RDONLY), open(words[2], O_RDONLY) };
	unsigned seed = 7;

	for (int i = 0; !is_over && i < MAX_TURNS; i++) {
		int call = n_calls;

		turns[i].begin_ns = ml_clock_ns();
		put(fds[i % 2]);
		turns[i].end_ns = ml_clock_ns();
		__atomic_store_n(&n_turns, i + 1, __ATOMIC_RELEASE);
		while (n_calls <= call + 1 && !is_over && i)
			usleep(50);
		usleep((unsigned)rand_r(&seed) % (call_us + 1));
	}
	return unused;
}

/* Was the file of even or odd turns there at that time? Both may be right while a turn is taken. */
static int is_right(int which, ml_u64 time_ns)
{
	int i = __atomic_load_n(&n_turns, __ATOMIC_ACQUIRE) - 1;

	while (i > 0 && turns[i].begin_ns > time_ns)
		i--;
	return i % 2 == which || time_ns <= turns[i].end_ns;
}

static int which_is_there(const char *text)
{
	char start[32];
	const char *line;

	snprintf(start, sizeof(start), "%lx-", (unsigned long)page);
	line = strstr(text, start);
	if (!line)
		abort();
	return !memmem(line, (size_t)(strchrnul(line, '\n') - line), words[1], strlen(words[1]));
}

int main(int argc, char **argv)
{
	int wrong = 0;
	pthread_t thread;

	words = argv;
	page = mmap(NULL, (2 * N_OTHERS + 1) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < N_OTHERS; i++, page += 2 * PAGE)
		mprotect(page, PAGE, PROT_READ);
	if (argc != 4 || pthread_create(&thread, NULL, take_turns, NULL))
		return 1;
	while (n_turns < 2)
		usleep(100);
	for (int i = atoi(argv[3]); i > 0; i--) {
		ml_u64 timestamp_ns, begin_ns = ml_clock_ns();
		size_t bytes;
		char *text;

		n_calls++;
		text = ml_process_maps_now((ml_u32)getpid(), &timestamp_ns, &bytes);
		call_us = (unsigned)((ml_clock_ns() - begin_ns) / 1000);

		wrong += !is_right(which_is_there(text), timestamp_ns);
		free(text);
	}
	is_over = 1;
	pthread_join(thread, NULL);
	printf("%d\n", wrong);
	return 0;
}
