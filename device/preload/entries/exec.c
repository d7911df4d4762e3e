// SPDX-License-Identifier: Apache-2.0
/*
 * A recorded process stays recorded across exec: the session's variables, removed from its environment at the start,
 * are passed to the new program, unless its sandbox forbids what the shim would do there. Children exec under a pid of their own
 * and do not get them.
 */
#include <stdarg.h>

#include "preload/recorder/connect.h"
#include "preload/entries/originals.h"
#include "preload/recorder/recorder.h"

#define EXPORT __attribute__((visibility("default")))

extern char **environ __attribute__((weak));

static size_t count_strings(char *const *strings)
{
	size_t n = 0;

	while (strings && strings[n])
		n++;
	return n;
}

/*
 * Counts threads inside exec, which returns only on failure. If the agent finds a process gone or with other memory
 * while the count is not 0, the process has become another program.
 */
static void count_leaving(int is_own_process, ml_u32 change)
{
	if (is_own_process)
		__atomic_fetch_add(&ml_view_in_force()->segment->n_leaving, change, __ATOMIC_SEQ_CST);
}

/* Whether the environment of the next program is another one than the program passes. */
static int changes(int is_own_process, char *const *environment, char **changed, char *preload, size_t preload_bytes)
{
	if (ml_sandbox_forbidden())
		return ml_connect_reduce_environment(environment, changed, preload, preload_bytes);
	return is_own_process && ml_connect_extend_environment(environment, changed, preload, preload_bytes);
}

/*
 * The environment is extended by the session's variables. Everything is on the stack: the caller may be a signal handler
 * or a child of vfork().
 */
#define EXEC(name, type)                                                                      \
	EXPORT int name(type program, char *const *arguments, char *const *environment)       \
	{                                                                                     \
		char *extended[count_strings(environment) + 3];                               \
		char preload[ML_CONNECT_PRELOAD_MAX];                                         \
		int is_own_process, result;                                                   \
                                                                                              \
		if (!ml_originals_ready() || !ml_original.name)                               \
			return ml_fail(ENOSYS);                                               \
		is_own_process = ml_recorder_is_own_process();                                \
		if (changes(is_own_process, environment, extended, preload, sizeof(preload))) \
			environment = extended;                                               \
		ml_limits_restore();                                                          \
		count_leaving(is_own_process, 1);                                             \
		result = ml_original.name(program, arguments, environment);                   \
		count_leaving(is_own_process, -1u);                                           \
		return result;                                                                \
	}

EXEC(execve, const char *)
EXEC(execvpe, const char *)
EXEC(fexecve, int)

EXPORT int execv(const char *path, char *const *arguments)
{
	return execve(path, arguments, &environ ? environ : NULL);
}

EXPORT int execvp(const char *file, char *const *arguments)
{
	return execvpe(file, arguments, &environ ? environ : NULL);
}

/* Number of arguments of an l-form before its NULL. */
static size_t count_arguments(va_list rest)
{
	size_t n = 1;

	while (va_arg(rest, char *))
		n++;
	return n;
}

static void collect_arguments(char **arguments, size_t n, char *first, va_list rest)
{
	arguments[0] = first;
	for (size_t i = 1; i <= n; i++)
		arguments[i] = va_arg(rest, char *);
}

/* RUN may use `arguments`, and `rest` for what follows their NULL. */
#define WITH_LIST(first, run)                                                   \
	do {                                                                    \
		va_list rest, counting;                                         \
		size_t n;                                                       \
                                                                                \
		va_start(rest, first);                                          \
		va_copy(counting, rest);                                        \
		n = count_arguments(counting);                                  \
		va_end(counting);                                               \
		{                                                               \
			char *arguments[n + 1];                                 \
			int result;                                             \
                                                                                \
			collect_arguments(arguments, n, (char *)(first), rest); \
			result = (run);                                         \
			va_end(rest);                                           \
			return result;                                          \
		}                                                               \
	} while (0)

EXPORT int execl(const char *path, const char *first, ...)
{
	WITH_LIST(first, execv(path, arguments));
}

EXPORT int execlp(const char *file, const char *first, ...)
{
	WITH_LIST(first, execvp(file, arguments));
}

EXPORT int execle(const char *path, const char *first, ...)
{
	WITH_LIST(first, execve(path, arguments, va_arg(rest, char **)));
}
