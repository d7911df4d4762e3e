// SPDX-License-Identifier: Apache-2.0
#include "agent/protocol/config.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/protocol/blocks.h"
#include "agent/protocol/host_watch.h"

/* Longest line: an argument of execve() has at most 128 KiB, and percent quoting triples it. */
#define LINE_BYTES (400u << 10)

static char line_buffer[LINE_BYTES];
static size_t line_fill;

/* Moves a whole line from the buffer to `line`. NULL: none yet. */
static char *take_line(char *line)
{
	char *newline = memchr(line_buffer, '\n', line_fill);
	size_t length;

	if (!newline)
		return NULL;
	length = (size_t)(newline - line_buffer);
	memcpy(line, line_buffer, length);
	line[length] = '\0';
	line_fill -= length + 1;
	memmove(line_buffer, newline + 1, line_fill);
	return line;
}

/* 1: more bytes, 0: none within the time, -1: closed, or a line without end. */
static int fill_buffer(int timeout_ms)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
	ssize_t n;

	if (line_fill == sizeof(line_buffer))
		return -1;
	if (poll(&input, 1, timeout_ms) <= 0)
		return 0;
	n = read(STDIN_FILENO, line_buffer + line_fill, sizeof(line_buffer) - line_fill);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n <= 0)
		return -1;
	line_fill += (size_t)n;
	return 1;
}

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

static bool parse_u64(const char *text, int base, ml_u64 *value)
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

/* FUNCTION FUNCTION_OFFSET ENTRY RETURN|- TEXT_LOW TEXT_HIGH PATH */
static bool parse_probe(struct ml_config *config, char *text)
{
	struct ml_probe *probe = &config->probes[config->n_probes];
	char *fields[7];
	ml_u64 function;
	int n = 0;

	for (char *field = strtok(text, " "); field && n < 7; field = strtok(NULL, " "))
		fields[n++] = field;
	if (n != 7 || config->n_probes == ML_MAX_PROBES)
		return false;
	if (!parse_u64(fields[0], 16, &function) || function >= ML_FN_MAX ||
	    (!config->rules[function].handle_bytes && (function < ML_FN_MMAP || function >= ML_FN_PAIR)) ||
	    !parse_u64(fields[1], 16, &probe->function_offset) || !parse_u64(fields[2], 16, &probe->entry_offset) ||
	    !parse_u64(fields[4], 16, &probe->text_low) || !parse_u64(fields[5], 16, &probe->text_high))
		return false;
	probe->function = (ml_u32)function;
	probe->has_return = strcmp(fields[3], "-") != 0;
	if (probe->has_return && !parse_u64(fields[3], 16, &probe->return_offset))
		return false;
	probe->path = ml_config_unquote(fields[6]);
	config->n_probes++;
	return probe->path != NULL;
}

#define PAIR_FIELDS (22 + ML_PAIR_VALUES)

/* FUNCTION, then struct ml_pair. The heap's rules are family 0, with the numbers of the wire format; those of --pairs have no gaps. */
static bool parse_rule(struct ml_config *config, char *text)
{
	struct ml_pair *pair;
	ml_u64 function, fields[PAIR_FIELDS];
	char *field = strtok(text, " ");
	int n = 0;

	if (!field || !parse_u64(field, 16, &function) || function >= ML_FN_MAX)
		return false;
	while ((field = strtok(NULL, " ")) && n < PAIR_FIELDS)
		if (!parse_u64(field, 10, &fields[n++]))
			return false;
	if (n != PAIR_FIELDS || (function >= ML_FN_MMAP && function != ML_FN_PAIR + (ml_u64)config->n_pairs))
		return false;
	pair = &config->rules[function];
	*pair = (struct ml_pair){
		.is_release = fields[0] != 0, .family = (ml_u32)fields[1], .nesting = (ml_u32)fields[2],
		.size_a = (ml_u32)fields[3], .size_b = (ml_u32)fields[4], .factor = fields[5],
		.handle = (ml_u32)fields[6], .is_indirect = (ml_u32)fields[7], .handle_bytes = (ml_u32)fields[8],
		.n_handles = (ml_u32)fields[9], .success = (ml_u32)fields[10], .replaces = (ml_u32)fields[11],
		.old = (ml_u32)fields[12], .is_sized = fields[13] != 0,
		.handle_offset = (ml_u32)fields[14], .is_of_process = (ml_u32)fields[15], .through = (ml_u32)fields[16],
		.is_early = (ml_u32)fields[17],
		.when = { .argument = (ml_u32)fields[18], .is_indirect = (ml_u32)fields[19],
			  .offset = (ml_u32)fields[20], .mask = (ml_u32)fields[21] },
	};
	for (n = 0; n < ML_PAIR_VALUES; n++)
		pair->when.values[n] = (ml_u32)fields[22 + n];
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
	if (!parse_u64(text, 16, &function) || function < ML_FN_PAIR || function >= ML_FN_PAIR + (ml_u64)config->n_pairs)
		return false;
	called->function = (ml_u32)function - ML_FN_PAIR;
	called->is_size_function = is_size_function;
	called->name = ml_config_unquote(name);
	config->n_pair_names++;
	return called->name != NULL;
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
	size_t offset;
	size_t bytes; /* 1: bool, 4: int or u32, 8: u64 */
};

#define NUMBER(field) { #field, offsetof(struct ml_config, field), sizeof(((struct ml_config *)0)->field) }

static const struct number_key number_keys[] = {
	NUMBER(pid), NUMBER(follow), NUMBER(hold_end), NUMBER(stack_bytes), NUMBER(sample_bytes), NUMBER(every_stack), NUMBER(extend_stacks), NUMBER(adaptive), NUMBER(evidence_after_ns),
	NUMBER(older_ns), NUMBER(min_size), NUMBER(max_size), NUMBER(max_live), NUMBER(events), NUMBER(mmap),
	NUMBER(perf_event_path), NUMBER(without_multi), NUMBER(no_evidence), NUMBER(empty_probes),
	NUMBER(nursery_bytes), NUMBER(ring_bytes), NUMBER(host_silence_s), NUMBER(no_heap),
	NUMBER(whole_machine), NUMBER(bystander), NUMBER(kernel_groups), NUMBER(max_stacks), NUMBER(without_btf),
};

static bool parse_number(struct ml_config *config, const char *key, const char *text)
{
	for (size_t i = 0; i < sizeof(number_keys) / sizeof(number_keys[0]); i++) {
		void *field = (char *)config + number_keys[i].offset;
		ml_u64 value;

		if (strcmp(key, number_keys[i].name))
			continue;
		if (!parse_u64(text, 10, &value))
			return false;
		if (number_keys[i].bytes == 1)
			*(bool *)field = value != 0;
		else if (number_keys[i].bytes == 4)
			*(ml_u32 *)field = (ml_u32)value;
		else
			*(ml_u64 *)field = value;
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
	if (!strcmp(key, "rule"))
		return parse_rule(config, value);
	if (!strcmp(key, "pair_name") || !strcmp(key, "pair_size"))
		return parse_pair_name(config, value, !strcmp(key, "pair_size"));
	if (!strcmp(key, "probe"))
		return parse_probe(config, value);
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

	if (!strcmp(key, "wire") && parse_u64(value, 10, &version) && version == ML_WIRE_VERSION)
		return 0;
	ml_blocks_error(ML_REASON_USAGE_ERROR,
			"host and agent speak different wire versions: host %llu, agent %u (install both from one release)",
			(unsigned long long)version, ML_WIRE_VERSION);
	return -1;
}

static int check_complete(const struct ml_config *config)
{
	int n_targets = (config->pid != 0) + (config->n_arguments != 0) + (config->await != NULL) + config->whole_machine;

	if (n_targets != 1) {
		ml_blocks_error(ML_REASON_USAGE_ERROR, "configuration names %s (exactly one of pid, arg, await and whole_machine)",
				n_targets ? "more than one target" : "no target");
		return -1;
	}
	return 0;
}

/* Returns -1 if neither the session nor this file knows the line. */
static int take_setting(struct ml_config *config, struct ml_config_lines lines, char *key, char *value)
{
	int taken = lines.take(lines.context, key, value);

	return taken ? taken : parse_line(config, key, value) ? 1 : -1;
}

int ml_config_read(struct ml_config *config, struct ml_config_lines lines)
{
	static char line[LINE_BYTES];
	bool is_first = true;

	*config = (struct ml_config){
		.stdio = { -1, -1, -1 },
		.stack_bytes = ML_STACK_BYTES_MAX,
		.max_size = ~0ull,
		.max_live = 4000000,
		.nursery_bytes = 64u << 20,
		.ring_bytes = 64u << 20,
	};
	for (;;) {
		char *value;

		while (!take_line(line))
			if (fill_buffer(-1) < 0)
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
		if (!value || take_setting(config, lines, line, value) < 0) {
			ml_blocks_error(ML_REASON_USAGE_ERROR, "unknown or malformed configuration line: %.80s (install host and agent from one release)", line);
			return -1;
		}
	}
}

/* Set by a signal: the same as the line `stop`. */
static volatile sig_atomic_t is_stop_requested;

static void request_stop(int signal)
{
	(void)signal;
	is_stop_requested = 1;
}

void ml_control_catch_signals(void)
{
	const struct sigaction stop = { .sa_handler = request_stop };

	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGHUP, &stop, NULL);
	/* The host decides when to stop: Ctrl-C on the terminal must not prevent the last snapshot. */
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

enum ml_control ml_control_poll(int timeout_ms)
{
	static char line[LINE_BYTES];

	if (!take_line(line)) {
		int filled = fill_buffer(timeout_ms);

		if (is_stop_requested)
			return ML_CONTROL_STOP;
		if (filled < 0 || ml_host_is_silent())
			return ML_CONTROL_CLOSED;
		if (!filled || !take_line(line))
			return ML_CONTROL_NONE;
	}
	ml_host_heard();
	if (!strcmp(line, "alive"))
		return ML_CONTROL_NONE;
	if (!strcmp(line, "snapshot"))
		return ML_CONTROL_SNAPSHOT;
	if (!strcmp(line, "stop"))
		return ML_CONTROL_STOP;
	if (!strcmp(line, "detach"))
		return ML_CONTROL_DETACH;
	if (!strcmp(line, "resume"))
		return ML_CONTROL_RESUME;
	ml_blocks_log("unknown control line: %.80s", line);
	return ML_CONTROL_NONE;
}
