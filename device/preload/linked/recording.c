// SPDX-License-Identifier: Apache-2.0
#include "preload/linked/recording.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/clock.h"
#include "preload/freestanding/syscalls.h"

#define SUFFIX ".new"
#define DIGITS 16
#define BYTES_MAX (256u << 20) /* more than the bounds of a segment allow */

/* CRC-32 of ISO 3309, bit-reflected, as zlib's crc32(): four bits at a time. */
static ml_u32 add_to_checksum(ml_u32 crc, const unsigned char *bytes, size_t n)
{
	static const ml_u32 table[16] = { 0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
					  0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
					  0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c };

	for (size_t i = 0; i < n; i++) {
		crc = table[(crc ^ bytes[i]) & 15] ^ crc >> 4;
		crc = table[(crc ^ bytes[i] >> 4) & 15] ^ crc >> 4;
	}
	return crc;
}

static void append(struct ml_recording *recording, const void *bytes, size_t n)
{
	const char *at = bytes;

	while (n && !recording->error) {
		long done = ML_SYSCALL3(write, recording->fd, at, n);

		if (done == -EINTR)
			continue;
		if (done <= 0) {
			recording->error = done ? done : -EIO;
			return;
		}
		at += done;
		n -= (size_t)done;
	}
}

/* In a shared folder another user may have put something in the way of a name that can be guessed. */
static void append_random(char *to)
{
	ml_u64 number = 0;

	if (ML_SYSCALL3(getrandom, &number, sizeof(number), 1 /* GRND_NONBLOCK */) < 0)
		number = ml_clock_ns(ML_CLOCK_MONOTONIC) ^ (ml_u64)(unsigned long)&number;
	*to++ = '.';
	for (int i = 0; i < DIGITS; i++, number >>= 4)
		*to++ = "0123456789abcdef"[number & 15];
	ml_copy(to, SUFFIX, sizeof(SUFFIX));
}

static int name_file(struct ml_recording *recording, const char *path)
{
	size_t length = ml_length(path);

	if (!ml_may_write_file(BYTES_MAX))
		return -EFBIG;
	if (length + 1 + DIGITS + sizeof(SUFFIX) > sizeof(recording->path))
		return -ENAMETOOLONG;
	ml_copy(recording->path, path, length);
	append_random(recording->path + length);
	return 0;
}

int ml_recording_create(struct ml_recording *recording, const char *path)
{
	struct {
		char magic[8];
		ml_u32 version, reserved;
	} header = { "MEMLEAK", ML_WIRE_VERSION, 0 };
	long scratch;
	int error = name_file(recording, path);

	if (error)
		return error;
	scratch =
		ML_MMAP(0, ML_RECORDING_SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	if (ml_is_error(scratch))
		return (int)scratch;
	recording->scratch = (unsigned char *)scratch;
	recording->error = 0;
	recording->fd =
		ML_SYSCALL4(openat, AT_FDCWD, recording->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (recording->fd >= 0) {
		append(recording, &header, sizeof(header));
		return 0;
	}
	ML_SYSCALL2(munmap, scratch, ML_RECORDING_SCRATCH_BYTES);
	return (int)recording->fd;
}

void ml_recording_write(struct ml_recording *recording, enum ml_block_kind kind, const struct iovec *parts, int n_parts)
{
	static const unsigned char zeros[8];
	struct ml_block block = { ML_BLOCK_MAGIC, (ml_u16)kind, ML_WIRE_VERSION, 0, ~0u };
	ml_u32 padding;

	for (int i = 0; i < n_parts; i++) {
		block.payload_bytes += (ml_u32)parts[i].iov_len;
		block.crc32 = add_to_checksum(block.crc32, parts[i].iov_base, parts[i].iov_len);
	}
	padding = -block.payload_bytes & 7;
	block.payload_bytes += padding;
	block.crc32 = ~add_to_checksum(block.crc32, zeros, padding);
	append(recording, &block, sizeof(block));
	for (int i = 0; i < n_parts; i++)
		append(recording, parts[i].iov_base, parts[i].iov_len);
	append(recording, zeros, padding);
}

int ml_recording_finish(struct ml_recording *recording, const char *path)
{
	if (!recording->error)
		recording->error = ML_SYSCALL1(fsync, recording->fd);
	ML_SYSCALL1(close, recording->fd);
	ML_SYSCALL2(munmap, recording->scratch, ML_RECORDING_SCRATCH_BYTES);
	if (!recording->error)
		recording->error = ML_SYSCALL4(renameat, AT_FDCWD, recording->path, AT_FDCWD, path);
	if (recording->error)
		ML_SYSCALL3(unlinkat, AT_FDCWD, recording->path, 0);
	return (int)recording->error;
}
