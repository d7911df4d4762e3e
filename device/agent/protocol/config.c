// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/extend.h"
#include "agent/protocol/host_watch.h"

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

char *ml_config_unquote(const char *text)
{
	char *result = malloc(strlen(text) + 1);
	char *out = result;

	if (!result)
		return NULL;
	while (*text) {
		if (*text == '%' && hex_digit(text[1]) >= 0 && hex_digit(text[2]) >= 0) {
			*out++ = (char)(hex_digit(text[1]) << 4 | hex_digit(text[2]));
			text += 3;
		} else {
			*out++ = *text++;
		}
	}
	*out = '\0';
	return result;
}

bool ml_config_number(const char *text, int base, ml_u64 *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, base);
	return *text && !*end && !errno;
}

static bool append(char ***list, int *count, const char *quoted)
{
	char **longer = *count < ML_MAX_ARGUMENTS ? realloc(*list, sizeof(char *) * (size_t)(*count + 2)) : NULL;

	if (!longer)
		return false;
	*list = longer;
	longer[*count] = ml_config_unquote(quoted);
	longer[++*count] = NULL;
	return longer[*count - 1] != NULL;
}

int ml_config_file(struct ml_config *config, const char *quoted_path)
{
	char *path = ml_config_unquote(quoted_path);

	for (size_t i = 0; path && i < config->n_files; i++)
		if (!strcmp(config->files[i].path, path)) {
			free(path);
			return (int)i;
		}
	if (!path || !ML_EXTEND(config->files, config->n_files, config->files_room)) {
		free(path);
		return -1;
	}
	config->files[config->n_files] = (struct ml_probed_file){ .path = path, .fd = -1 };
	return (int)config->n_files++;
}

/* Splits at spaces. False: not n fields. */
static bool split(char *text, char **fields, int n)
{
	int found = 0;

	for (char *field = strtok(text, " "); field && found < n; field = strtok(NULL, " "))
		fields[found++] = field;
	return found == n;
}

/* DEVICE INODE BYTES MODIFIED_NS PATH: of the file that the host read */
static bool parse_file(struct ml_config *config, char *text)
{
	struct ml_file_version version, *known;
	char *fields[5];
	int i = split(text, fields, 5) ? ml_config_file(config, fields[4]) : -1;

	if (i < 0 || !ml_config_number(fields[0], 16, &version.device) || !ml_config_number(fields[1], 16, &version.inode) ||
	    !ml_config_number(fields[2], 16, &version.bytes) || !ml_config_number(fields[3], 16, &version.modified_ns))
		return false;
	known = &config->files[i].version;
	if (known->inode && memcmp(known, &version, sizeof(version)))
		version.inode = ~0ull; /* the host read two files under this path: its offsets fit neither */
	*known = version;
	return true;
}

/* FUNCTION FUNCTION_OFFSET ENTRY RETURN|- TEXT_LOW TEXT_HIGH PATH */
static bool parse_probe(struct ml_config *config, char *text)
{
	struct ml_probe *probe = &config->probes[config->n_probes];
	char *fields[7];
	ml_u64 function;
	int file;

	if (config->n_probes == ML_MAX_PROBES || !split(text, fields, 7))
		return false;
	if (!ml_config_number(fields[0], 16, &function) || function >= ML_FN_MAX ||
	    (!config->rules[function].handle_bytes && (function < ML_FN_MMAP || function >= ML_FN_PAIR)) ||
	    !ml_config_number(fields[1], 16, &probe->function_offset) ||
	    !ml_config_number(fields[2], 16, &probe->entry_offset) || !ml_config_number(fields[4], 16, &probe->text_low) ||
	    !ml_config_number(fields[5], 16, &probe->text_high))
		return false;
	probe->function = (ml_u32)function;
	probe->has_return = strcmp(fields[3], "-") != 0;
	if (probe->has_return && !ml_config_number(fields[3], 16, &probe->return_offset))
		return false;
	file = ml_config_file(config, fields[6]);
	probe->file = (ml_u32)file;
	config->n_probes++;
	return file >= 0;
}

/* N OFFSET…: of the instructions that leave the function of the last `probe`; 0: it only jumps to others that have a probe */
static bool parse_exits(struct ml_config *config, char *text)
{
	char *field = strtok(text, " ");
	ml_u64 n;

	if (!field || !ml_config_number(field, 10, &n) || !config->n_probes || n > (ml_u64)(ML_MAX_EXITS - config->n_exits))
		return false;
	for (ml_u64 i = 0; i < n; i++, config->n_exits++) {
		struct ml_exit *exit = &config->exits[config->n_exits];

		exit->probe = config->n_probes - 1;
		field = strtok(NULL, " ");
		if (!field || !ml_config_number(field, 16, &exit->offset))
			return false;
	}
	config->rules[config->probes[config->n_probes - 1].function].has_exits = 1;
	return true;
}

#define PAIR_FIELDS (23 + ML_PAIR_VALUES)
/* FUNCTION, then struct ml_pair. The heap's rules are family 0, with the numbers of the wire format; those of --pairs have no gaps. */
static bool parse_rule(struct ml_config *config, char *text)
{
	struct ml_pair *pair;
	ml_u64 function, fields[PAIR_FIELDS];
	char *field = strtok(text, " ");
	int n = 0;

	if (!field || !ml_config_number(field, 16, &function) || function >= ML_FN_MAX)
		return false;
	while ((field = strtok(NULL, " ")) && n < PAIR_FIELDS)
		if (!ml_config_number(field, 10, &fields[n++]))
			return false;
	if (n != PAIR_FIELDS || (function >= ML_FN_MMAP && function != ML_FN_PAIR + (ml_u64)config->n_pairs))
		return false;
	pair = &config->rules[function];
	*pair = (struct ml_pair){ .is_release = fields[0] != 0,
				  .family = (ml_u32)fields[1],
				  .nesting = (ml_u32)fields[2],
				  .size_a = (ml_u32)fields[3],
				  .size_b = (ml_u32)fields[4],
				  .factor = fields[5],
				  .handle = (ml_u32)fields[6],
				  .is_indirect = (ml_u32)fields[7],
				  .handle_bytes = (ml_u32)fields[8],
				  .n_handles = (ml_u32)fields[9],
				  .success = (ml_u32)fields[10],
				  .replaces = (ml_u32)fields[11],
				  .old = (ml_u32)fields[12],
				  .is_sized = fields[13] != 0,
				  .handle_offset = (ml_u32)fields[14],
				  .is_of_process = (ml_u32)fields[15],
				  .through = (ml_u32)fields[16],
				  .is_early = (ml_u32)fields[17],
				  .zero_frees = (ml_u32)fields[18],
				  .when = { .argument = (ml_u32)fields[19],
					    .is_indirect = (ml_u32)fields[20],
					    .offset = (ml_u32)fields[21],
					    .mask = (ml_u32)fields[22] } };
	for (n = 0; n < ML_PAIR_VALUES; n++)
		pair->when.values[n] = (ml_u32)fields[23 + n];
	config->n_pairs += function >= ML_FN_PAIR;
	return pair->family < 255 && !pair->family == (function < ML_FN_PAIR) &&
	       (pair->handle_bytes == 4 || pair->handle_bytes == 8);
}

/* FUNCTION NAME */
static bool parse_pair_name(struct ml_config *config, char *text, bool is_size_function)
{
	struct ml_pair_called *called = &config->pair_names[config->n_pair_names];
	char *name = strchr(text, ' ');
	ml_u64 function;

	if (!name || config->n_pair_names == ML_PAIR_NAMES_MAX)
		return false;
	*name++ = 0;
	if (!ml_config_number(text, 16, &function) || function < ML_FN_PAIR || function >= ML_FN_PAIR + (ml_u64)config->n_pairs)
		return false;
	called->function = (ml_u32)function - ML_FN_PAIR;
	called->is_size_function = is_size_function;
	called->name = ml_config_unquote(name);
	config->n_pair_names++;
	return called->name != NULL;
}

/* Lines about functions: their files, where their probes go, their rules. 1 = parsed, 0 = not one of them, -1 = malformed. */
static int take_probe_line(struct ml_config *config, const char *key, char *value)
{
	bool is_size = !strcmp(key, "pair_size");

	if (!strcmp(key, "rule"))
		return parse_rule(config, value) ? 1 : -1;
	if (!strcmp(key, "pair_name") || is_size)
		return parse_pair_name(config, value, is_size) ? 1 : -1;
	if (!strcmp(key, "file"))
		return parse_file(config, value) ? 1 : -1;
	if (!strcmp(key, "probe"))
		return parse_probe(config, value) ? 1 : -1;
	if (!strcmp(key, "exits"))
		return parse_exits(config, value) ? 1 : -1;
	return 0;
}

static bool parse_stdio(struct ml_config *config, const char *text)
{
	char *end = (char *)text;

	for (int i = 0; i < 3; i++)
		config->stdio[i] = (int)strtol(end, &end, 10);
	return !*end;
}

struct number_key {
	const char *name;
	size_t offset, bytes; /* bytes 1: bool, 4: int or u32, 8: u64 */
};

#define NUMBER(field) { #field, offsetof(struct ml_config, field), sizeof(((struct ml_config *)0)->field) }

static const struct number_key number_keys[] = {
	NUMBER(pid),
	NUMBER(follow),
	NUMBER(hold_end),
	NUMBER(stack_bytes),
	NUMBER(sample_bytes),
	NUMBER(every_stack),
	NUMBER(extend_stacks),
	NUMBER(older_ns),
	NUMBER(min_size),
	NUMBER(max_size),
	NUMBER(max_live),
	NUMBER(events),
	NUMBER(mmap),
	NUMBER(perf_event_path),
	NUMBER(without_multi),
	NUMBER(lends_memory),
	NUMBER(no_evidence),
	NUMBER(empty_probes),
	NUMBER(nursery_bytes),
	NUMBER(ring_bytes),
	NUMBER(host_silence_s),
	NUMBER(no_heap),
	NUMBER(whole_machine),
	NUMBER(bystander),
	NUMBER(kernel_groups),
	NUMBER(max_stacks),
	NUMBER(without_btf),
	NUMBER(no_python_objects),
	NUMBER(no_python_lines),
};

static bool parse_number(struct ml_config *config, const char *key, const char *text)
{
	for (size_t i = 0; i < sizeof(number_keys) / sizeof(number_keys[0]); i++) {
		void *field = (char *)config + number_keys[i].offset;
		ml_u64 value;

		if (strcmp(key, number_keys[i].name))
			continue;
		if (!ml_config_number(text, 10, &value))
			return false;
		if (number_keys[i].bytes == 1)
			value = value != 0;
		memcpy(field, &value, number_keys[i].bytes); /* every architecture is little-endian */
		return true;
	}
	return false;
}

static bool parse_unwind(struct ml_config *config, const char *text)
{
	static const char *const names[] = { [ML_UNWIND_CFI] = "cfi", [ML_UNWIND_FP] = "fp", [ML_UNWIND_BOTH] = "both" };

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		config->unwind = (enum ml_unwind)i;
		if (!strcmp(text, names[i]))
			return true;
	}
	return false;
}

static bool parse_line(struct ml_config *config, char *key, char *value)
{
	if (!strcmp(key, "arg"))
		return append(&config->argv, &config->n_arguments, value);
	if (!strcmp(key, "env"))
		return append(&config->env_changes, &config->n_env_changes, value);
	if (!strcmp(key, "stdio"))
		return parse_stdio(config, value);
	if (!strcmp(key, "await"))
		return (config->await = ml_config_unquote(value)) != NULL;
	if (!strcmp(key, "shim"))
		return (config->shim_path = ml_config_unquote(value)) != NULL;
	if (!strcmp(key, "hook"))
		return (!strcmp(value, "plt") || !strcmp(value, "inline")) && (config->hook = ml_config_unquote(value)) != NULL;
	if (!strcmp(key, "unwind"))
		return parse_unwind(config, value);
	return parse_number(config, key, value);
}

static int check_version(const char *key, const char *value)
{
	ml_u64 version = 0;

	if (!strcmp(key, "wire") && ml_config_number(value, 10, &version) && version == ML_WIRE_VERSION)
		return 0;
	return ml_blocks_error(
		ML_REASON_USAGE_ERROR,
		"host and agent speak different wire versions: host %llu, agent %u (install both from one release)",
		(unsigned long long)version, ML_WIRE_VERSION);
}

static int check_complete(const struct ml_config *config)
{
	int n_targets = (config->pid != 0) + (config->n_arguments != 0) + (config->await != NULL) + config->whole_machine;

	if (n_targets != 1)
		return ml_blocks_error(ML_REASON_USAGE_ERROR,
				       "configuration names %s (exactly one of pid, arg, await and whole_machine)",
				       n_targets ? "more than one target" : "no target");
	return 0;
}

/* Returns -1 if neither the session nor this file knows the line. */
static int take_setting(struct ml_config *config, struct ml_config_lines lines, char *key, char *value)
{
	int taken = lines.take(lines.context, key, value);

	if (!taken)
		taken = take_probe_line(config, key, value);
	return taken ? taken : parse_line(config, key, value) ? 1 : -1;
}

int ml_config_read(struct ml_config *config, struct ml_config_lines lines)
{
	static char line[ML_HOST_LINE_BYTES];
	bool is_first = true;

	*config = (struct ml_config){ .stdio = { -1, -1, -1 },
				      .stack_bytes = ML_STACK_BYTES_MAX,
				      .max_size = ~0ull,
				      .max_live = 4000000,
				      .nursery_bytes = 64u << 20,
				      .ring_bytes = 64u << 20 };
	for (;;) {
		char *value;

		if (ml_host_line_wait(line))
			return -1;
		if (!strcmp(line, "start")) {
			ml_host_expect(config->host_silence_s);
			return check_complete(config);
		}
		value = strchr(line, ' ');
		if (value)
			*value++ = '\0';
		if (is_first) {
			is_first = false;
			if (check_version(line, value ? value : ""))
				return -1;
			continue;
		}
		if (!value || take_setting(config, lines, line, value) < 0)
			return ml_blocks_error(
				ML_REASON_USAGE_ERROR,
				"unknown or malformed configuration line: %.80s (install host and agent from one release)",
				line);
	}
}
