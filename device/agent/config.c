// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "host_watch.h"

/* Lines longer than this are refused: an argument of execve() is at most 128 KiB, quoted at most thrice that. */
#define LINE_BYTES (400u << 10)

static char line_buffer[LINE_BYTES];
static size_t line_fill;

/* A whole line from the buffer into `line`, or NULL when there is none yet. */
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

/* 1 = more bytes, 0 = nothing within the time, -1 = closed or a line without end. */
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

/* Undoes percent quoting into memory of its own. */
static char *unquote(const char *text)
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
	longer[*count] = unquote(quoted);
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
	    !parse_u64(fields[1], 16, &probe->function_offset) || !parse_u64(fields[2], 16, &probe->entry_offset) ||
	    !parse_u64(fields[4], 16, &probe->text_low) || !parse_u64(fields[5], 16, &probe->text_high))
		return false;
	probe->function = (ml_u32)function;
	probe->has_return = strcmp(fields[3], "-") != 0;
	if (probe->has_return && !parse_u64(fields[3], 16, &probe->return_offset))
		return false;
	probe->path = unquote(fields[6]);
	config->n_probes++;
	return probe->path != NULL;
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
	NUMBER(pid), NUMBER(follow), NUMBER(stack_bytes), NUMBER(sample_bytes), NUMBER(every_stack),
	NUMBER(older_ns), NUMBER(min_size), NUMBER(max_size), NUMBER(max_live), NUMBER(events), NUMBER(mmap),
	NUMBER(perf_event_path), NUMBER(no_evidence), NUMBER(empty_probes),
	NUMBER(nursery_bytes), NUMBER(ring_bytes), NUMBER(host_silence_s),
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

static bool parse_line(struct ml_config *config, char *key, char *value)
{
	if (!strcmp(key, "arg"))
		return append(&config->argv, &config->n_arguments, value);
	if (!strcmp(key, "env"))
		return append(&config->env_changes, &config->n_env_changes, value);
	if (!strcmp(key, "probe"))
		return parse_probe(config, value);
	if (!strcmp(key, "stdio"))
		return parse_stdio(config, value);
	if (!strcmp(key, "await"))
		return (config->await = unquote(value)) != NULL;
	if (!strcmp(key, "shim"))
		return (config->shim_path = unquote(value)) != NULL;
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
	int n_targets = (config->pid != 0) + (config->n_arguments != 0) + (config->await != NULL);

	if (n_targets != 1) {
		ml_blocks_error(ML_REASON_USAGE_ERROR, "configuration names %s (exactly one of pid, arg and await)",
				n_targets ? "more than one target" : "no target");
		return -1;
	}
	return 0;
}

int ml_config_read(struct ml_config *config)
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
		if (!value || !parse_line(config, line, value)) {
			ml_blocks_error(ML_REASON_USAGE_ERROR, "configuration line not understood: %.80s", line);
			return -1;
		}
	}
}

/* Set by a signal that asks the agent to end: the same as the line `stop`. */
static volatile sig_atomic_t is_stop_asked;

static void ask_stop(int signal)
{
	(void)signal;
	is_stop_asked = 1;
}

void ml_control_catch_signals(void)
{
	const struct sigaction stop = { .sa_handler = ask_stop };

	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGHUP, &stop, NULL);
	/* The host decides when to stop: a Ctrl-C on the terminal must not cut the last snapshot. */
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

enum ml_control ml_control_poll(int timeout_ms)
{
	static char line[LINE_BYTES];

	if (!take_line(line)) {
		int filled = fill_buffer(timeout_ms);

		if (is_stop_asked)
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
	ml_blocks_log("control line not understood: %.80s", line);
	return ML_CONTROL_NONE;
}
