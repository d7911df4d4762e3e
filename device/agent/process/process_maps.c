// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/process/process_maps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"

/* A process with the kernel's default of 65530 mappings has about 8 MiB of text. */
#define TEXT_BYTES_MAX (ML_BLOCK_PAYLOAD_MAX - 4096)
/* For a process that keeps mapping code: after so many the last reading is used. */
#define MAX_READINGS 8

char *ml_process_maps_read(ml_u32 pid, size_t *bytes)
{
	char path[64];
	size_t size = 64u << 10, fill = 0;
	char *text = malloc(size);
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/maps", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	while (text && fd >= 0 && fill < TEXT_BYTES_MAX) {
		ssize_t n = read(fd, text + fill, size - fill - 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		fill += (size_t)n;
		if (size - fill < 4096) {
			char *larger = realloc(text, size *= 2);

			if (!larger)
				break;
			text = larger;
		}
	}
	if (fd >= 0)
		close(fd);
	if (!text || !fill) {
		free(text);
		return NULL;
	}
	text[fill] = '\0';
	*bytes = fill;
	return text;
}

/* Behind the next line of executable memory: *line is where that begins, NULL when there is none. */
static const char *next_code(const char *text, const char **line)
{
	char permissions[4];
	ml_u64 start, end;

	for (const char *next; *text; text = next) {
		next = ml_process_maps_line(text, &start, &end, permissions);
		if (!next)
			break;
		*line = text;
		if (permissions[2] == 'x')
			return next;
	}
	*line = NULL;
	return text;
}

static bool have_same_code(const char *one, const char *other)
{
	const char *line, *other_line;

	do {
		one = next_code(one, &line);
		other = next_code(other, &other_line);
		if (!line || !other_line)
			return line == other_line;
	} while (one - line == other - other_line && !memcmp(line, other_line, (size_t)(one - line)));
	return false;
}

char *ml_process_maps_now(ml_u32 pid, ml_u64 *timestamp_ns, size_t *bytes)
{
	bool is_true = false;
	char *text;

	*timestamp_ns = ml_clock_ns();
	text = ml_process_maps_read(pid, bytes);
	for (int i = 1; text && !is_true && i < MAX_READINGS; i++) {
		ml_u64 between_ns = ml_clock_ns();
		size_t again_bytes;
		char *again = ml_process_maps_read(pid, &again_bytes);

		if (!again)
			return text; /* it ends: that was the last there was */
		is_true = have_same_code(text, again);
		free(text);
		text = again;
		*bytes = again_bytes;
		*timestamp_ns = between_ns;
	}
	return text;
}

int ml_process_maps_write(ml_u32 pid, ml_u64 timestamp_ns, const char *text, size_t bytes)
{
	struct ml_maps header = { .timestamp_ns = timestamp_ns, .pid = pid, .text_bytes = (ml_u32)bytes };
	struct iovec parts[] = { { &header, sizeof(header) }, { (void *)text, bytes } };

	return ml_blocks_writev(ML_BLOCK_MAPS, parts, 2);
}

const char *ml_process_maps_line(const char *line, ml_u64 *start, ml_u64 *end, char permissions[4])
{
	char *at;

	*start = strtoull(line, &at, 16);
	if (*at != '-')
		return NULL;
	*end = strtoull(at + 1, &at, 16);
	if (*at != ' ' || strnlen(at, 5) < 5)
		return NULL;
	memcpy(permissions, at + 1, 4);
	at = strchr(at, '\n');
	return at ? at + 1 : NULL;
}

void ml_process_maps_code(const char *text, void (*on_code)(void *context, ml_u64 start, ml_u64 end), void *context)
{
	char permissions[4];
	ml_u64 start, end;

	while (text && *text) {
		text = ml_process_maps_line(text, &start, &end, permissions);
		if (text && permissions[2] == 'x' && (ml_u64)start < 1ull << 56)
			on_code(context, start, end);
	}
}

ml_u64 ml_process_maps_end(const char *text, ml_u64 address)
{
	char permissions[4];
	ml_u64 start, end;

	while (text && *text) {
		text = ml_process_maps_line(text, &start, &end, permissions);
		if (text && start <= address && address < end)
			return end;
	}
	return 0;
}
