// SPDX-License-Identifier: Apache-2.0
#include "agent/process/process_maps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/protocol/blocks.h"

/* A process with the kernel's default of 65530 mappings has about 8 MiB of text. */
#define TEXT_BYTES_MAX (ML_BLOCK_PAYLOAD_MAX - 4096)
/* After so many readings of a process that keeps mapping code, the last one is used. */
#define MAX_READINGS 8

static bool has_maps(void *context, int tid)
{
	char name[32], byte[2];

	snprintf(name, sizeof(name), "task/%d/maps", tid);
	return ml_proc_read(*(pid_t *)context, name, byte, sizeof(byte)) > 0;
}

/* The first thread's are empty once it has ended, though others may go on. */
static int open_maps(pid_t pid)
{
	char name[32];
	int tid = ml_proc_find(pid, "task", has_maps, &pid);

	snprintf(name, sizeof(name), "task/%d/maps", tid < 0 ? pid : tid);
	return ml_proc_open(pid, name, O_RDONLY);
}

char *ml_process_maps_read(ml_u32 pid, size_t *bytes)
{
	size_t size = 64u << 10, fill = 0;
	char *text = malloc(size);
	int fd = open_maps((pid_t)pid);

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
	if (bytes)
		*bytes = fill;
	return text;
}

const char *ml_process_maps_line(const char *text, struct ml_maps_line *line)
{
	const char *newline = text ? strchr(text, '\n') : NULL;
	char *at;

	if (!newline)
		return NULL;
	line->text = text;
	line->start = strtoull(text, &at, 16);
	if (*at != '-')
		return NULL;
	line->end = strtoull(at + 1, &at, 16);
	if (*at != ' ' || newline - at < 6)
		return NULL;
	memcpy(line->permissions, at + 1, 4);
	line->offset = strtoull(at + 5, &at, 16);
	line->major = (ml_u32)strtoul(at, &at, 16);
	line->minor = (ml_u32)strtoul(at + (*at == ':'), &at, 16);
	line->inode = strtoull(at, &at, 10);
	while (*at == ' ')
		at++;
	line->path = at < newline ? at : newline;
	line->path_bytes = (size_t)(newline - line->path);
	return newline + 1;
}

bool ml_process_maps_has(const struct ml_maps_line *line, const char *name)
{
	return memmem(line->path, line->path_bytes, name, strlen(name));
}

const char *ml_process_maps_code(const char *text, struct ml_maps_line *line)
{
	while ((text = ml_process_maps_line(text, line)))
		if (line->permissions[2] == 'x' && line->start < 1ull << 56)
			break;
	return text;
}

const char *ml_process_maps_find(const char *text, ml_u64 address, struct ml_maps_line *line)
{
	while ((text = ml_process_maps_line(text, line)))
		if (line->start <= address && address < line->end)
			break;
	return text;
}

static bool have_same_code(const char *one, const char *other)
{
	struct ml_maps_line line, other_line;

	do {
		one = ml_process_maps_code(one, &line);
		other = ml_process_maps_code(other, &other_line);
		if (!one || !other)
			return one == other;
	} while (one - line.text == other - other_line.text && !memcmp(line.text, other_line.text, (size_t)(one - line.text)));
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
			return text; /* the process has ended: this is the last reading */
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

int ml_process_maps_report(ml_u32 pid)
{
	ml_u64 timestamp_ns;
	size_t bytes;
	char *text = ml_process_maps_now(pid, &timestamp_ns, &bytes);
	int result = text ? ml_process_maps_write(pid, timestamp_ns, text, bytes) : 0;

	free(text);
	return result;
}

int ml_process_write(ml_u32 pid, enum ml_process_event event, int status, ml_u64 timestamp_ns)
{
	struct ml_process record = { .timestamp_ns = timestamp_ns, .pid = pid, .event = event, .status = status };

	ml_process_name(pid, record.comm);
	return ml_blocks_writev(ML_BLOCK_PROCESS, &(struct iovec){ &record, sizeof(record) }, 1);
}

#define LOOKS_MAX 8 /* a target may attach memory all the time */

int ml_region_complete(struct ml_region_sizes *sizes, struct ml_event *event)
{
	struct ml_maps_line line;
	char *text;

	if (event->function != ML_FN_SHMAT || event->size)
		return 1;
	if (sizes->n_looks++ >= LOOKS_MAX)
		return -1;
	text = ml_process_maps_read(event->pid, NULL);
	if (text && ml_process_maps_find(text, event->address, &line) && line.start == event->address)
		event->size = line.end - line.start;
	free(text);
	return event->size != 0;
}
