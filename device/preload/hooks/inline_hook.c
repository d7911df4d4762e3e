// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/inline_hook.h"

#include <linux/mman.h>

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/syscalls.h"

#define ADDRESS_DIGITS 16
#define ROOMS_MAX 64
#define STEP (1 << 20)

/* The range of a branch (x86-64: ±2 GiB, A64: ±128 MiB) less the size of a library. */
#if defined(__x86_64__)
#define REACH 0x40000000l
#else
#define REACH 0x6000000l
#endif

__asm__(".pushsection .text\n"
	".globl memleak_room\n"
	".type memleak_room, %function\n"
	".balign 16\n"
	"memleak_room:\n"
	".zero 24576\n"
	".size memleak_room, 24576\n"
	".popsection\n");

unsigned long memleak_moved_code;

static struct {
	unsigned long near, room;
} rooms[ROOMS_MAX];

/* An address or -errno. Never replaces a mapping, even where an old kernel takes the flag as a hint. */
static long map_at(unsigned long address)
{
	long got =
		ML_MMAP(address, ML_ROOM_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1);

	if (ml_is_error(got) || (unsigned long)got == address)
		return got;
	ML_SYSCALL2(munmap, got, ML_ROOM_BYTES);
	return -ENOMEM;
}

static long find_room(unsigned long near)
{
	unsigned long start = near & ~(STEP - 1ul);
	long got = -ENOMEM;

	for (long distance = STEP; distance < REACH; distance += STEP) {
		if (start > (unsigned long)distance && (got = map_at(start - (unsigned long)distance)) > 0)
			return got;
		if ((got = map_at(start + (unsigned long)distance)) > 0)
			return got;
		if (got == -EACCES) /* SELinux forbids it everywhere */
			return got;
	}
	return got;
}

int memleak_reserve(const char *line)
{
	const char *digits = line;
	unsigned long near;
	long room;
	int i = 0;

	if (!line || ml_length(line) != ADDRESS_DIGITS)
		return -EINVAL;
	near = (unsigned long)ml_parse_hex(&digits, line + ADDRESS_DIGITS);
	if (digits != line + ADDRESS_DIGITS)
		return -EINVAL;
	while (i < ROOMS_MAX && rooms[i].near && rooms[i].near != near)
		i++;
	if (i == ROOMS_MAX)
		return -ENOMEM;
	if (!rooms[i].near) {
		room = find_room(near);
		if (ml_is_error(room))
			return (int)room;
		rooms[i].near = near;
		rooms[i].room = (unsigned long)room;
	}
	return ML_ROOM_BIAS + (int)((long)(rooms[i].room - (near & ~(ML_ROOM_PAGE - 1ul))) / ML_ROOM_PAGE);
}
