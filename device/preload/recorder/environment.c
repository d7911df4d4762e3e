// SPDX-License-Identifier: Apache-2.0
/* The session that the environment names, and the environment of the target and of programs that it executes. */

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/syscalls.h"
#include "preload/recorder/connect.h"

#define ENVIRONMENT_BYTES 4096 /* of /proc/self/environ, read at a time */
#define PRELOAD "LD_PRELOAD="
#define FILE_SUFFIX ".session"
#define ARGUMENTS_MAX 100000 /* a higher count means that the word is not argc */
#define STAT_BYTES 1024
#define FIELDS_TO_START_STACK 26 /* of /proc/PID/stat, counted behind the name: field 28 in proc(5) */

static char shim_path[ML_CONNECT_PRELOAD_MAX / 2];
char ml_connect_variable[sizeof(ML_CONNECT_VARIABLE) + ML_CONNECT_TEXT_MAX];
struct ml_connect_session ml_connect_session;

/* The session file beside the first entry of LD_PRELOAD; "" = none. */
static char file_path[ML_CONNECT_PRELOAD_MAX / 2];

/* Returns 0 if the text is not made of ML_NONCE_DIGITS, or all are 0. */
static int read_nonce(const char *digits, struct ml_nonce *nonce)
{
	for (int i = 0; i < 2; i++) {
		const char *end = digits + ML_NONCE_DIGITS / 2;

		nonce->words[i] = ml_parse_hex(&digits, end);
		if (digits != end)
			return 0;
	}
	return ml_nonce_is_set(nonce);
}

int ml_connect_read_text(const char *text, size_t length)
{
	size_t name_bytes = length - ML_NONCE_DIGITS - 1;
	struct ml_nonce nonce;

	if (length < ML_NONCE_DIGITS + 2 || length >= ML_CONNECT_TEXT_MAX || text[name_bytes] != ':' ||
	    !read_nonce(text + name_bytes + 1, &nonce))
		return 0;
	ml_copy(ml_connect_session.socket_name, text, name_bytes);
	ml_connect_session.socket_name[name_bytes] = '\0';
	ml_copy(ml_connect_variable, ML_CONNECT_VARIABLE, sizeof(ML_CONNECT_VARIABLE) - 1);
	ml_copy(ml_connect_variable + sizeof(ML_CONNECT_VARIABLE) - 1, text, length);
	ml_connect_session.nonce = nonce;
	return 1;
}

/* Length of the first entry of LD_PRELOAD. The linkers of glibc and bionic split at both characters. */
static size_t first_entry(const char *value)
{
	size_t length = 0;

	while (value[length] && value[length] != ':' && value[length] != ' ')
		length++;
	return length;
}

static void note_preload(const char *value)
{
	size_t length = first_entry(value);

	if (!length || length + sizeof(FILE_SUFFIX) > sizeof(file_path))
		return;
	ml_copy(file_path, value, length);
	ml_copy(file_path + length, FILE_SUFFIX, sizeof(FILE_SUFFIX));
}

/* Returns 1 if the variable names the session. */
static int note_variable(const char *variable)
{
	const char *value = variable + sizeof(ML_CONNECT_VARIABLE) - 1;

	if (ml_starts_with(variable, ML_CONNECT_VARIABLE))
		return ml_connect_read_text(value, ml_length(value));
	if (ml_starts_with(variable, PRELOAD))
		note_preload(variable + sizeof(PRELOAD) - 1);
	return 0;
}

/* Until libc has set `environ`, reads the kernel's copy. */
static int read_proc_environment(void)
{
	char buffer[ENVIRONMENT_BYTES];
	size_t fill = 0;
	long fd = ml_open_to_read("/proc/self/environ");
	long n;
	int is_found = 0;

	while (fd >= 0 && !is_found && (n = ML_SYSCALL3(read, fd, buffer + fill, sizeof(buffer) - 1 - fill)) > 0) {
		size_t start = 0;

		fill += (size_t)n;
		for (size_t i = 0; i < fill && !is_found; i++) {
			if (buffer[i])
				continue;
			is_found = note_variable(buffer + start);
			start = i + 1;
		}
		if (!start) /* one long variable, of which only the end matters */
			start = fill;
		for (size_t i = start; i < fill; i++)
			buffer[i - start] = buffer[i];
		fill -= start;
	}
	if (fd >= 0)
		ML_SYSCALL1(close, fd);
	return is_found;
}

static int read_environment(char *const *environment)
{
	int is_found = 0;

	if (!environment)
		return read_proc_environment();
	for (; *environment && !is_found; environment++)
		is_found = note_variable(*environment);
	return is_found;
}

/* The file needs no further check: a user who could write it could replace the shim as well. */
static int read_file(void)
{
	char text[ML_CONNECT_TEXT_MAX + 1];
	long n = file_path[0] ? ml_read_file(file_path, text, sizeof(text)) : 0;

	if (n > 0 && text[n - 1] == '\n')
		n--;
	ml_connect_session.is_of_file = n > 0 && ml_connect_read_text(text, (size_t)n);
	return ml_connect_session.is_of_file;
}

int ml_connect_read_environment(char *const *environment)
{
	return ml_nonce_is_set(&ml_connect_session.nonce) || read_environment(environment) || read_file();
}

/* ---- the environment of the target ----------------------------------------------------------------------- */

/* Field `n` of a text with a space before each field, as a decimal number. */
static unsigned long read_field(const char *text, int n)
{
	unsigned long value = 0;

	while (n && *text)
		n -= *text++ == ' ';
	for (; *text >= '0' && *text <= '9'; text++)
		value = 10 * value + (unsigned long)(*text - '0');
	return value;
}

/* The address of argc, which argv and the environment follow (System V ABI, "Initial Process Stack"). */
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

/* Removes the agent's entry, which is the first: "LD_PRELOAD=OURS" or "LD_PRELOAD=OURS:THE USER'S". */
static void clean_preload(char **variable)
{
	char *value = *variable + sizeof(PRELOAD) - 1;
	size_t length = first_entry(value);
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

/* Writes "LD_PRELOAD=OURS" or "LD_PRELOAD=OURS:THE USER'S" to `out`. Returns 0 if it does not fit. */
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

int ml_connect_reduce_environment(char *const *environment, char **reduced, char *preload, size_t preload_bytes)
{
	char *users = NULL;
	int is_ours = ml_connect_session.is_of_file;
	size_t n = 0, bytes;

	for (; environment && *environment; environment++) {
		if (ml_starts_with(*environment, PRELOAD))
			users = *environment;
		else if (ml_starts_with(*environment, ML_CONNECT_VARIABLE))
			is_ours = 1;
		else
			reduced[n++] = *environment;
	}
	if (users && is_ours) {
		users += sizeof(PRELOAD) - 1;
		users += first_entry(users);
		bytes = ml_length(users); /* with its zero, without the colon */
		if (bytes > 1 && sizeof(PRELOAD) + bytes <= preload_bytes) {
			ml_copy(preload, PRELOAD, sizeof(PRELOAD) - 1);
			ml_copy(preload + sizeof(PRELOAD) - 1, users + 1, bytes);
			reduced[n++] = preload;
		}
	} else if (users) {
		reduced[n++] = users;
	}
	reduced[n] = NULL;
	return is_ours;
}
