// SPDX-License-Identifier: Apache-2.0
/* The target finds the user's environment; ours is put back for an exec only. */
#include <stddef.h>

#include "preload/freestanding/bytes.h"
#include "preload/recorder/connect.h"
#include "preload/freestanding/syscalls.h"

#define PRELOAD ML_CONNECT_PRELOAD

static char shim_path[ML_CONNECT_PRELOAD_MAX / 2];

#define ARGUMENTS_MAX 100000 /* where there are more, what was found is no argc */
#define STAT_BYTES 1024
#define FIELDS_TO_START_STACK 26 /* of /proc/PID/stat behind the name: proc(5), field 28 */

/* Field `n` of text of which each has a blank in front, as a decimal number. */
static unsigned long read_field(const char *text, int n)
{
	unsigned long value = 0;

	while (n && *text)
		n -= *text++ == ' ';
	for (; *text >= '0' && *text <= '9'; text++)
		value = 10 * value + (unsigned long)(*text - '0');
	return value;
}

/* Where argc stands, and behind it argv and the environment (System V ABI, figure "Initial Process Stack"). */
static unsigned long find_start_of_stack(void)
{
	char text[STAT_BYTES], *name_end = text;
	long n = ml_read_file("/proc/self/stat", text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	for (char *at = text; *at; at++)
		if (*at == ')')
			name_end = at;
	return read_field(name_end, FIELDS_TO_START_STACK);
}

char **ml_connect_first_environment(void)
{
	unsigned long start = find_start_of_stack(), here = (unsigned long)&start;
	const unsigned long *words = (const unsigned long *)start;

	if (start < here || start % sizeof(*words) || words[0] > ARGUMENTS_MAX || words[words[0] + 1])
		return NULL;
	return (char **)start + words[0] + 2;
}

static void remove_at(char **environment)
{
	do
		environment[0] = environment[1];
	while (*environment++);
}

/* The agent put its entry first: "LD_PRELOAD=OURS" or "LD_PRELOAD=OURS:THE USER'S". */
static void clean_preload(char **variable)
{
	char *value = *variable + sizeof(PRELOAD) - 1;
	size_t length = ml_connect_first_entry(value);
	char *rest = value + length;

	if (length < sizeof(shim_path))
		ml_copy(shim_path, value, length);
	if (!*rest) {
		remove_at(variable);
		return;
	}
	rest++;
	while ((*value++ = *rest++))
		;
}

void ml_connect_clean_environment(char **environment)
{
	int is_ours = environment && ml_connect_session.is_of_file;

	for (char **variable = environment; variable && *variable; variable++)
		is_ours |= ml_starts_with(*variable, ML_CONNECT_VARIABLE);
	while (is_ours && *environment) {
		char *text = *environment;

		if (ml_starts_with(text, ML_CONNECT_VARIABLE))
			remove_at(environment);
		else if (ml_starts_with(text, PRELOAD))
			clean_preload(environment);
		if (*environment == text)
			environment++;
	}
}

/* "LD_PRELOAD=OURS" or "LD_PRELOAD=OURS:THE USER'S" into `out`; 0 when it does not fit. */
static int make_preload(const char *users, char *out, size_t room)
{
	size_t ours = ml_length(shim_path), theirs = users ? ml_length(users) : 0;
	size_t head = sizeof(PRELOAD) - 1;

	if (head + ours + theirs + 2 > room)
		return 0;
	ml_copy(out, PRELOAD, head);
	ml_copy(out + head, shim_path, ours);
	if (theirs)
		out[head + ours++] = ':';
	ml_copy(out + head + ours, users, theirs);
	out[head + ours + theirs] = '\0';
	return 1;
}

int ml_connect_extend_environment(char *const *environment, char **extended, char *preload, size_t preload_bytes)
{
	const char *users = NULL;
	size_t n = 0;

	if (!shim_path[0])
		return 0;
	for (; environment && *environment; environment++) {
		if (ml_starts_with(*environment, PRELOAD))
			users = *environment + sizeof(PRELOAD) - 1;
		else
			extended[n++] = *environment;
	}
	extended[n++] = ml_connect_variable;
	if (make_preload(users, preload, preload_bytes))
		extended[n++] = preload;
	extended[n] = NULL;
	return 1;
}
