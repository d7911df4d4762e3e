/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator above the kernel's calls. For each byte that comes through the FIFO argv[2] it takes 64 KiB and writes to it, takes and
 * gives back as much, and answers by a byte into argv[3]; `q` ends it. argv[1]: how: libc, syscall (mmap without libc), shm,
 * sbrk; or queue: 100 blocks replace the oldest of a full queue; vector: of a block that doubles; sandbox: blocks, where the kernel
 * refuses openat() and gettid() from the first call on.
 */
#include "libc.h"
#include <linux/filter.h>
#include <linux/seccomp.h>

#define BYTES 65536

void *volatile kept;

__attribute__((noipa)) static void *new_arena(void)
{
	return memset(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, BYTES);
}

__attribute__((noipa)) static void *arena_of_kernel(void)
{
	long address = syscall(SYS_mmap, NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memset((void *)address, 1, BYTES);
}

__attribute__((noipa)) static void *arena_of_shm(void)
{
	int id = shmget(IPC_PRIVATE, BYTES, 0600 | IPC_CREAT);
	void *arena = shmat(id, NULL, 0);

	shmctl(id, IPC_RMID, NULL);
	return memset(arena, 1, BYTES);
}

__attribute__((noipa)) static void *arena_of_break(void)
{
	return memset(sbrk(BYTES), 1, BYTES);
}

#define QUEUED 4000

__attribute__((noipa)) static void *replace_oldest(void)
{
	static void *queue[QUEUED];
	static int next;
	int n = queue[0] ? 100 : QUEUED; /* the first call fills it */

	for (int i = 0; i < n; i++, next = (next + 1) % QUEUED) {
		free(queue[next]);
		queue[next] = memset(malloc(1000), 1, 1000);
	}
	return NULL;
}

__attribute__((noipa)) static void *push_back(void)
{
	static char *vector;
	static size_t used, capacity = 1 << 20;

	if (!vector || used + BYTES > capacity)
		vector = realloc(vector, capacity *= 2);
	used += BYTES;
	return memset(vector + used - BYTES, 1, BYTES);
}

static int is_refused(void)
{
	struct sock_filter code[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number */
				      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 1, 0),
				      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_gettid, 0, 1),
				      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
				      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

__attribute__((noipa)) static void *block_in_sandbox(void)
{
	static int is_in;

	if (!is_in && !(is_in = is_refused()))
		_exit(3);
	return memset(malloc(BYTES), 1, BYTES);
}

static void keep(void *nothing)
{
	(void)nothing;
}

static void unmap(void *arena)
{
	munmap(arena, BYTES);
}

static void detach(void *arena)
{
	shmdt(arena);
}

static void lower_break(void *arena)
{
	(void)arena;
	sbrk(-BYTES);
}

static const struct {
	const char *name;
	void *(*take)(void);
	void (*give_back)(void *);
} ways[] = { { "libc", new_arena, unmap },
	     { "syscall", arena_of_kernel, unmap },
	     { "shm", arena_of_shm, detach },
	     { "sbrk", arena_of_break, lower_break },
	     { "queue", replace_oldest, keep },
	     { "vector", push_back, keep },
	     { "sandbox", block_in_sandbox, free } };

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int requests = open(argv[2], O_RDWR), answers = open(argv[3], O_RDWR), way = 0;
	char request;

	while (strcmp(ways[way].name, argv[1]))
		way++;
	kept = malloc(1009);
	while (read(requests, &request, 1) == 1 && request != 'q') {
		ways[way].take();
		ways[way].give_back(ways[way].take());
		if (write(answers, &request, 1) != 1)
			return 1;
	}
	return 0;
}
