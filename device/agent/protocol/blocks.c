// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/blocks.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "agent/protocol/host_watch.h"
#include "agent/protocol/version.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define MAX_PARTS 12

static const char zeros[8];
static bool host_is_gone;

ml_u64 ml_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (ml_u64)now.tv_sec * 1000000000u + (ml_u64)now.tv_nsec;
}

/* CRC-32 of the wire format (zlib's), by carry-less products if the processor has them. Continues from `crc`; 0 at first. */
#if defined(__x86_64__)

/*
 * Four 16-byte lanes are folded over the data by carry-less products with x^n mod P (bit-reflected), then into one lane. Its 16 bytes
 * have the remainder of all bytes before them, so zlib finishes with them instead. (V. Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ", Intel 2009.)
 */
#define FOLD_BYTES 64u
#define X_544 0x154442bd4 /* x^(512+32) and x^(512-32): over four lanes */
#define X_480 0x1c6e41596
#define X_160 0x1751997d0 /* x^(128+32) and x^(128-32): over one */
#define X_96 0x0ccaa009e

__attribute__((target("sse4.1,pclmul"))) static inline __m128i fold(__m128i lane, __m128i by, __m128i next)
{
	__m128i low = _mm_clmulepi64_si128(lane, by, 0x00), high = _mm_clmulepi64_si128(lane, by, 0x11);

	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("sse4.1,pclmul"))) static ml_u32 fold_all(ml_u32 crc, const unsigned char *bytes, size_t n)
{
	const __m128i over_four = _mm_set_epi64x(X_480, X_544), over_one = _mm_set_epi64x(X_96, X_160);
	const __m128i *from = (const __m128i *)(const void *)bytes;
	__m128i lanes[4], last;

	for (int i = 0; i < 4; i++)
		lanes[i] = _mm_loadu_si128(from + i);
	lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)~crc));
	for (from += 4, n -= FOLD_BYTES; n >= FOLD_BYTES; from += 4, n -= FOLD_BYTES)
		for (int i = 0; i < 4; i++)
			lanes[i] = fold(lanes[i], over_four, _mm_loadu_si128(from + i));
	last = lanes[0];
	for (int i = 1; i < 4; i++)
		last = fold(last, over_one, lanes[i]);
	/* crc32(~0) undoes zlib's own start value: the remainder is in the lane already. */
	crc = (ml_u32)crc32(~0u, (const Bytef *)&last, sizeof(last));
	return (ml_u32)crc32(crc, (const Bytef *)from, (uInt)n);
}

static ml_u32 checksum(ml_u32 crc, const void *bytes, size_t n)
{
	static int can_fold = -1;
	unsigned int a, b, c = 0, d;

	if (can_fold < 0)
		can_fold = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL) && (c & bit_SSE4_1);
	return can_fold && n >= FOLD_BYTES ? fold_all(crc, bytes, n) : (ml_u32)crc32(crc, bytes, (uInt)n);
}

#else

static ml_u32 checksum(ml_u32 crc, const void *bytes, size_t n)
{
	return (ml_u32)crc32(crc, bytes, (uInt)n);
}

#endif

/* Writes everything, or fails because the host is gone: no block is left half written. */
static int write_all(struct iovec *parts, int n_parts)
{
	while (n_parts > 0) {
		ssize_t written = writev(STDOUT_FILENO, parts, n_parts);

		if (written < 0) {
			if (errno == EINTR && !ml_host_is_silent())
				continue;
			if (errno == EAGAIN && !ml_host_is_silent()) {
				struct pollfd writable = { .fd = STDOUT_FILENO, .events = POLLOUT };

				poll(&writable, 1, -1);
				continue;
			}
			host_is_gone = true;
			return -1;
		}
		while (n_parts > 0 && (size_t)written >= parts->iov_len) {
			written -= (ssize_t)parts->iov_len;
			parts++;
			n_parts--;
		}
		if (n_parts > 0) {
			parts->iov_base = (char *)parts->iov_base + written;
			parts->iov_len -= (size_t)written;
		}
	}
	return 0;
}

int ml_blocks_writev(enum ml_block_kind kind, const struct iovec *parts, int n_parts)
{
	struct ml_block header = { .magic = ML_BLOCK_MAGIC, .kind = (ml_u16)kind, .version = ML_WIRE_VERSION };
	struct iovec out[MAX_PARTS + 2] = { { &header, sizeof(header) } };
	ml_u32 crc = 0;
	size_t bytes = 0;
	int n = 1;

	if (host_is_gone || n_parts > MAX_PARTS)
		return -1;
	for (int i = 0; i < n_parts; i++) {
		if (!parts[i].iov_len)
			continue;
		out[n++] = parts[i];
		bytes += parts[i].iov_len;
		crc = checksum(crc, parts[i].iov_base, parts[i].iov_len);
	}
	if (bytes % 8) {
		out[n] = (struct iovec){ (void *)zeros, 8 - bytes % 8 };
		crc = checksum(crc, zeros, out[n].iov_len);
		bytes += out[n++].iov_len;
	}
	header.payload_bytes = (ml_u32)bytes;
	header.crc32 = crc;
	return write_all(out, n);
}

int ml_blocks_write(enum ml_block_kind kind, const void *payload, size_t payload_bytes)
{
	struct iovec part = { (void *)payload, payload_bytes };

	return ml_blocks_writev(kind, &part, 1);
}

int ml_blocks_hello(enum ml_collector collector, int pid)
{
	struct timespec now;
	struct ml_hello hello = {
		.wire_version = ML_WIRE_VERSION,
		.arch = ML_AGENT_ARCH,
		.collector = (ml_u16)collector,
		.page_bytes = (ml_u32)sysconf(_SC_PAGESIZE),
		.pid = (ml_u32)pid,
		.monotonic_ns = ml_clock_ns(),
		.agent_version = ML_AGENT_VERSION,
	};

	clock_gettime(CLOCK_REALTIME, &now);
	hello.realtime_ns = (ml_u64)now.tv_sec * 1000000000u + (ml_u64)now.tv_nsec;
	return ml_blocks_write(ML_BLOCK_HELLO, &hello, sizeof(hello));
}

static int write_text(enum ml_block_kind kind, const struct iovec *head, const char *format, va_list arguments)
{
	char text[2048];
	int length = vsnprintf(text, sizeof(text), format, arguments);
	struct iovec parts[2] = { *head, { text, 0 } };

	if (length < 0)
		return -1;
	parts[1].iov_len = (size_t)length < sizeof(text) ? (size_t)length : sizeof(text) - 1;
	if (kind == ML_BLOCK_ERROR)
		((struct ml_error *)head->iov_base)->text_bytes = (ml_u32)parts[1].iov_len;
	return ml_blocks_writev(kind, parts, 2);
}

int ml_blocks_log(const char *format, ...)
{
	struct iovec nothing = { NULL, 0 };
	va_list arguments;
	int result;

	va_start(arguments, format);
	result = write_text(ML_BLOCK_LOG, &nothing, format, arguments);
	va_end(arguments);
	return result;
}

int ml_blocks_gap(const char *condition_and_answer, const char *format, ...)
{
	char head[64];
	struct iovec part = { head, (size_t)snprintf(head, sizeof(head), "%s ", condition_and_answer) };
	va_list arguments;
	int result;

	va_start(arguments, format);
	result = write_text(ML_BLOCK_GAP, &part, format, arguments);
	va_end(arguments);
	return result;
}

void ml_blocks_log_children(ml_u64 n_children)
{
	if (n_children)
		ml_blocks_log("%llu child process%s not measured; use --follow", (unsigned long long)n_children,
			      n_children == 1 ? " was" : "es were");
}

int ml_blocks_error(enum ml_reason reason, const char *format, ...)
{
	struct ml_error error = { .reason = reason };
	struct iovec head = { &error, sizeof(error) };
	va_list arguments;

	va_start(arguments, format);
	write_text(ML_BLOCK_ERROR, &head, format, arguments);
	va_end(arguments);
	return -1;
}

int ml_blocks_end(enum ml_reason reason, int wait_status)
{
	struct ml_end end = { .reason = reason, .status = wait_status, .timestamp_ns = ml_clock_ns() };

	return ml_blocks_write(ML_BLOCK_END, &end, sizeof(end));
}

int ml_event_batch_write(struct ml_event_batch *batch)
{
	size_t bytes = batch->count * sizeof(batch->events[0]);

	batch->count = 0;
	return bytes ? ml_blocks_write(ML_BLOCK_EVENTS, batch->events, bytes) : 0;
}

int ml_event_batch_add(struct ml_event_batch *batch, const struct ml_event *event)
{
	batch->events[batch->count++] = *event;
	return batch->count == ML_EVENT_BATCH ? ml_event_batch_write(batch) : 0;
}
