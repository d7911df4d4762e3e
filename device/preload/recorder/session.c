// SPDX-License-Identifier: Apache-2.0
/* Which session this process belongs to. */
#include "preload/freestanding/bytes.h"
#include "preload/recorder/connect.h"
#include "preload/freestanding/syscalls.h"

#define NONCE_DIGITS 16
#define ENVIRONMENT_BYTES 4096 /* of /proc/self/environ at one time */

char ml_connect_variable[sizeof(ML_CONNECT_VARIABLE) + ML_CONNECT_TEXT_MAX];
struct ml_connect_session ml_connect_session;

/* The file of the session that the first entry of LD_PRELOAD leads to; "" = there is none. */
static char file_path[ML_CONNECT_PRELOAD_MAX / 2];

int ml_connect_read_text(const char *text, size_t length)
{
	const char *digits = text + length - NONCE_DIGITS;
	ml_u64 nonce;

	if (length < NONCE_DIGITS + 2 || length >= ML_CONNECT_TEXT_MAX || digits[-1] != ':')
		return 0;
	nonce = ml_parse_hex(&digits, text + length);
	if (digits != text + length || !nonce)
		return 0;
	ml_copy(ml_connect_session.socket_name, text, length - NONCE_DIGITS - 1);
	ml_connect_session.socket_name[length - NONCE_DIGITS - 1] = '\0';
	ml_copy(ml_connect_variable, ML_CONNECT_VARIABLE, sizeof(ML_CONNECT_VARIABLE) - 1);
	ml_copy(ml_connect_variable + sizeof(ML_CONNECT_VARIABLE) - 1, text, length);
	ml_connect_session.nonce = nonce;
	return 1;
}

static void note_preload(const char *value)
{
	size_t length = ml_connect_first_entry(value);

	if (!length || length + sizeof(ML_CONNECT_FILE_SUFFIX) > sizeof(file_path))
		return;
	ml_copy(file_path, value, length);
	ml_copy(file_path + length, ML_CONNECT_FILE_SUFFIX, sizeof(ML_CONNECT_FILE_SUFFIX));
}

/* 1: it names the session. */
static int note_variable(const char *variable)
{
	const char *value = variable + sizeof(ML_CONNECT_VARIABLE) - 1;

	if (ml_starts_with(variable, ML_CONNECT_VARIABLE))
		return ml_connect_read_text(value, ml_length(value));
	if (ml_starts_with(variable, ML_CONNECT_PRELOAD))
		note_preload(variable + sizeof(ML_CONNECT_PRELOAD) - 1);
	return 0;
}

/* Before the libc set its `environ` the kernel's own copy can be read. */
static int read_proc_environment(void)
{
	char buffer[ENVIRONMENT_BYTES];
	size_t fill = 0;
	long fd = ml_open_to_read("/proc/self/environ");
	long n;
	int is_found = 0;

	while (fd >= 0 && !is_found &&
	       (n = ML_SYSCALL3(read, fd, buffer + fill, sizeof(buffer) - 1 - fill)) > 0) {
		size_t start = 0;

		fill += (size_t)n;
		for (size_t i = 0; i < fill && !is_found; i++) {
			if (buffer[i])
				continue;
			is_found = note_variable(buffer + start);
			start = i + 1;
		}
		if (!start) /* one long variable: its end is all that is needed */
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

/* Who could write there could as well put other code in the shim's place: nothing more is asked of the file. */
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
	return ml_connect_session.nonce || read_environment(environment) || read_file();
}
