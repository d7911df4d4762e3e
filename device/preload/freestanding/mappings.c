// SPDX-License-Identifier: Apache-2.0
#include "preload/freestanding/mappings.h"

#include <sys/mman.h>

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/syscalls.h"

#define RANGES_MAX 70000u /* above the kernel's default limit of 65,530 (vm.max_map_count) */
#define TEXT_BYTES 1024
#define LINE_BYTES 300

/* Behind the next space. */
static const char *skip_field(const char *text, const char *end)
{
	while (text < end && *text != ' ')
		text++;
	while (text < end && *text == ' ')
		text++;
	return text;
}

/* low-high perms offset device inode path; `line` ends with a zero after `end`. */
static struct ml_own_mapping_line parse(char *line, const char *end)
{
	struct ml_own_mapping_line parsed = { .path = "" };
	const char *text = line;

	parsed.range.low = (unsigned long)ml_parse_hex(&text, end);
	text += text < end;
	parsed.range.high = (unsigned long)ml_parse_hex(&text, end);
	text = skip_field(text, end);
	if (end - text < 5)
		return parsed;
	parsed.range.protection =
		(text[0] == 'r' ? PROT_READ : 0u) | (text[1] == 'w' ? PROT_WRITE : 0u) | (text[2] == 'x' ? PROT_EXEC : 0u);
	parsed.range.is_shared = text[3] == 's';
	text = skip_field(text, end);
	parsed.file_offset = (unsigned long)ml_parse_hex(&text, end);
	text = skip_field(text, end); /* device */
	text = skip_field(text, end); /* inode */
	parsed.path = skip_field(text, end);
	return parsed;
}

struct lines {
	char line[LINE_BYTES];
	size_t length;
	long (*visit)(void *context, const struct ml_own_mapping_line *line);
	void *context;
};

static long take(struct lines *lines, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		struct ml_own_mapping_line parsed;
		long result;

		if (text[i] != '\n') {
			if (lines->length < LINE_BYTES - 1)
				lines->line[lines->length++] = text[i];
			continue;
		}
		lines->line[lines->length] = '\0';
		parsed = parse(lines->line, lines->line + lines->length);
		lines->length = 0;
		result = lines->visit(lines->context, &parsed);
		if (result)
			return result;
	}
	return 0;
}

long ml_mappings_each(long (*visit)(void *context, const struct ml_own_mapping_line *line), void *context)
{
	struct lines lines = { .visit = visit, .context = context };
	char text[TEXT_BYTES];
	long fd = ml_open_maps(), n, result = 0;

	if (fd < 0)
		return fd;
	while (!result && ((n = ML_SYSCALL3(read, fd, text, sizeof(text))) > 0 || n == -EINTR))
		result = n > 0 ? take(&lines, text, (size_t)n) : 0;
	ML_SYSCALL1(close, fd);
	return result ? result : n < 0 ? n : 0;
}

static long add_range(void *context, const struct ml_own_mapping_line *line)
{
	struct ml_mappings *maps = context;

	if (maps->n == RANGES_MAX)
		return -E2BIG;
	maps->ranges[maps->n++] = line->range;
	return 0;
}

int ml_mappings_read(struct ml_mappings *maps)
{
	long memory = ML_MMAP(0, RANGES_MAX * sizeof(struct ml_own_mapping), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	long result;

	maps->n = 0;
	maps->ranges = NULL;
	if (ml_is_error(memory))
		return (int)memory;
	maps->ranges = (struct ml_own_mapping *)memory;
	result = ml_mappings_each(add_range, maps);
	if (result)
		ml_mappings_drop(maps);
	return (int)result;
}

void ml_mappings_drop(struct ml_mappings *maps)
{
	if (maps->ranges)
		ML_SYSCALL2(munmap, maps->ranges, RANGES_MAX * sizeof(struct ml_own_mapping));
	maps->ranges = NULL;
	maps->n = 0;
}

const struct ml_own_mapping *ml_mappings_find(const struct ml_mappings *maps, unsigned long address)
{
	size_t low = 0, high = maps->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (maps->ranges[middle].high <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < maps->n && maps->ranges[low].low <= address ? &maps->ranges[low] : NULL;
}

int ml_mappings_can_read(const struct ml_mappings *maps, unsigned long address, size_t bytes)
{
	const struct ml_own_mapping *range = ml_mappings_find(maps, address), *end = maps->ranges + maps->n;
	unsigned long last;

	if (!bytes)
		return 1;
	if (!range || __builtin_add_overflow(address, bytes - 1, &last))
		return 0;
	while (range->protection & PROT_READ) {
		if (last < range->high)
			return 1;
		if (range + 1 == end || range[1].low != range->high)
			return 0;
		range++;
	}
	return 0;
}
