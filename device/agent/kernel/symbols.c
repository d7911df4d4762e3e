// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/symbols.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"

#define TEXT_TYPES "tTwW"
/* The kernel's largest have some 100 KiB; behind its last one lies code that has no name. */
#define FUNCTION_BYTES_MAX (1u << 20)
/* A line of the block: START END BASE MODULE NAME */
#define LINE_BYTES 800

struct symbol {
	ml_u64 start;
	char *name;
	ml_u32 module; /* of modules[] */
	bool is_used;  /* sent to the host */
};

struct module {
	char name[64];
	ml_u64 base; /* its lowest function; `_text` of the kernel itself */
};

struct ml_kernel_symbols {
	struct symbol *rows; /* by start */
	size_t count, room;
	struct module *modules;
	size_t n_modules, modules_room;
	char *text; /* lines to be written */
	size_t text_bytes, text_room;
};

/* kallsyms has each module's symbols together. */
static bool find_module(struct ml_kernel_symbols *symbols, const char *name, ml_u64 start, ml_u32 *number)
{
	struct module *last = symbols->n_modules ? &symbols->modules[symbols->n_modules - 1] : NULL;

	if (!last || strcmp(last->name, name)) {
		if (!ML_EXTEND(symbols->modules, symbols->n_modules, symbols->modules_room))
			return false;
		last = &symbols->modules[symbols->n_modules++];
		snprintf(last->name, sizeof(last->name), "%s", name);
		last->base = start;
	}
	if (start < last->base)
		last->base = start;
	*number = (ml_u32)(last - symbols->modules);
	return true;
}

static bool add(struct ml_kernel_symbols *symbols, ml_u64 start, const char *name, const char *module)
{
	struct symbol row = { .start = start };

	if (!ML_EXTEND(symbols->rows, symbols->count, symbols->room) || !find_module(symbols, module, start, &row.module))
		return false;
	row.name = strdup(name);
	if (row.name)
		symbols->rows[symbols->count++] = row;
	return row.name != NULL;
}

/* "ffffffff81000000 T _text", or with "\t[module]" behind it */
static bool read_lines(struct ml_kernel_symbols *symbols, FILE *file)
{
	char *line = NULL;
	size_t room = 0;
	bool is_well = true;

	while (is_well && getline(&line, &room, file) > 0) {
		char name[512], module[64] = "kernel", type;
		unsigned long long start;
		int n = sscanf(line, "%llx %c %511s [%63[^]]]", &start, &type, name, module);

		if (n >= 3 && strchr(TEXT_TYPES, type) && start)
			is_well = add(symbols, start, name, module);
	}
	free(line);
	return is_well;
}

struct ml_kernel_symbols *ml_kernel_symbols_read(void)
{
	struct ml_kernel_symbols *symbols = calloc(1, sizeof(*symbols));
	FILE *file = fopen("/proc/kallsyms", "re");

	if (symbols && file && !read_lines(symbols, file)) {
		ml_kernel_symbols_free(symbols);
		symbols = NULL;
	}
	if (file)
		fclose(file);
	if (!symbols)
		return NULL;
	qsort(symbols->rows, symbols->count, sizeof(*symbols->rows), ml_compare_u64);
	if (!symbols->count)
		ml_blocks_log(
			"the kernel's functions have no names: /proc/kallsyms hides addresses (sysctl kernel.kptr_restrict=1 "
			"shows them to root)");
	return symbols;
}

/* The last symbol that begins at or before the address, NULL where it is too far for a function. */
static struct symbol *find(const struct ml_kernel_symbols *symbols, ml_u64 address)
{
	size_t low = 0, high = symbols->count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (symbols->rows[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low && address - symbols->rows[low - 1].start < FUNCTION_BYTES_MAX ? &symbols->rows[low - 1] : NULL;
}

static ml_u64 end_of(const struct ml_kernel_symbols *symbols, const struct symbol *row)
{
	const struct symbol *next = row + 1, *end = symbols->rows + symbols->count;

	while (next < end && next->start == row->start)
		next++;
	return next < end ? next->start : row->start + 1;
}

bool ml_kernel_symbols_range(const struct ml_kernel_symbols *symbols, const char *function, ml_u64 *start, ml_u64 *end)
{
	for (size_t i = 0; i < symbols->count; i++) {
		if (strcmp(symbols->rows[i].name, function))
			continue;
		*start = symbols->rows[i].start;
		*end = end_of(symbols, &symbols->rows[i]);
		return true;
	}
	return false;
}

static void mark_used(struct ml_kernel_symbols *symbols, const struct symbol *row)
{
	const struct module *module = &symbols->modules[row->module];
	if (symbols->text_room - symbols->text_bytes < LINE_BYTES) {
		size_t room = symbols->text_room ? 2 * symbols->text_room : 1 << 16;
		char *larger = realloc(symbols->text, room);

		if (!larger)
			return;
		symbols->text = larger;
		symbols->text_room = room;
	}
	symbols->text_bytes += (size_t)snprintf(symbols->text + symbols->text_bytes, LINE_BYTES, "%llx %llx %llx %s %s\n",
						(unsigned long long)row->start, (unsigned long long)end_of(symbols, row),
						(unsigned long long)module->base, module->name, row->name);
}

bool ml_kernel_has_names(const struct ml_kernel_symbols *symbols)
{
	return symbols->count != 0;
}

const char *ml_kernel_symbols_find(const struct ml_kernel_symbols *symbols, ml_u64 address)
{
	const struct symbol *row = find(symbols, address);

	return row ? row->name : NULL;
}

void ml_kernel_symbols_use(struct ml_kernel_symbols *symbols, ml_u64 address)
{
	struct symbol *row = find(symbols, address);

	if (row && !row->is_used)
		mark_used(symbols, row);
	if (row)
		row->is_used = true;
}

static bool begins_with_one(const char *function, const char *const *beginnings, int n)
{
	for (int i = 0; function && i < n; i++)
		if (!strncmp(function, beginnings[i], strlen(beginnings[i])))
			return true;
	return false;
}

bool ml_kernel_is_tracer(const char *function)
{
	/* kernel/trace/bpf_trace.c, include/linux/tracepoint.h, include/trace/perf.h */
	static const char *const beginnings[] = { "bpf_",        "__bpf_",         "__traceiter_",
						  "perf_trace_", "trace_call_bpf", "__probestub_" };

	return !function || begins_with_one(function, beginnings, (int)(sizeof(beginnings) / sizeof(beginnings[0])));
}

bool ml_kernel_is_interrupt(const char *function)
{
	/* arch/x86/include/asm/idtentry.h, arch/arm64/kernel/entry-common.c */
	static const char *const beginnings[] = { "asm_common_interrupt", "asm_sysvec_", "el0t_64_irq", "el1h_64_irq",
						  "el0t_64_fiq",          "el1h_64_fiq", "asm_exc_nmi" };

	return begins_with_one(function, beginnings, (int)(sizeof(beginnings) / sizeof(beginnings[0])));
}

int ml_kernel_symbols_write(struct ml_kernel_symbols *symbols)
{
	size_t bytes = symbols->text_bytes;

	symbols->text_bytes = 0;
	return bytes ? ml_blocks_write(ML_BLOCK_KERNEL_SYMBOLS, symbols->text, bytes) : 0;
}

void ml_kernel_symbols_free(struct ml_kernel_symbols *symbols)
{
	if (!symbols)
		return;
	for (size_t i = 0; i < symbols->count; i++)
		free(symbols->rows[i].name);
	free(symbols->rows);
	free(symbols->modules);
	free(symbols->text);
	free(symbols);
}
