// SPDX-License-Identifier: Apache-2.0
#include "agent/snoop/config.h"

#include <stdlib.h>
#include <string.h>

/* Numbers of a line, the last one hexadecimal. */
static bool parse_fields(char *text, int n_wanted, ml_u64 *numbers)
{
	int n = 0;

	for (char *field = strtok(text, " "); field; field = strtok(NULL, " "), n++)
		if (n == n_wanted || !ml_config_number(field, n == n_wanted - 1 ? 16 : 10, &numbers[n]))
			return false;
	return n == n_wanted;
}

static bool parse_number(const char *text, ml_u64 most, ml_u64 *number)
{
	return ml_config_number(text, 10, number) && *number <= most;
}

/* object PID PATH */
static bool parse_object(struct ml_snoop_config *config, char *value)
{
	struct ml_snoop_file *file = &config->files[config->n_files];
	char *path = strchr(value, ' ');
	ml_u64 pid;
	int number;

	if (!path || config->n_files == ML_SNOOP_OBJECTS)
		return false;
	*path++ = '\0';
	if (!parse_number(value, 0x7fffffff, &pid))
		return false;
	file->pid = (int)pid;
	number = ml_config_file(&config->session, path);
	file->file = (ml_u32)number;
	config->n_files++;
	return number >= 0;
}

/* at FUNCTION KIND OFFSET: in the object named last */
static bool parse_site(struct ml_snoop_config *config, char *value)
{
	ml_u64 numbers[3];

	if (!config->n_files || config->n_sites == ML_SNOOP_SITES || !parse_fields(value, 3, numbers) ||
	    numbers[0] >= config->n_functions || numbers[1] > ML_PROBE_TAIL)
		return false;
	config->sites[config->n_sites++] = (struct ml_snoop_site){
		.file = config->n_files - 1, .function = (ml_u32)numbers[0], .kind = (ml_u32)numbers[1], .offset = numbers[2]
	};
	return true;
}

/* function HAS_RETURN: gets the next number */
static bool parse_function(struct ml_snoop_config *config, char *value)
{
	ml_u64 has_return;

	if (config->n_functions == ML_CALL_FUNCTIONS_MAX || !parse_number(value, 1, &has_return))
		return false;
	config->functions[config->n_functions++].has_return = has_return != 0;
	return true;
}

static struct ml_snoop_function *last_function(struct ml_snoop_config *config)
{
	return config->n_functions ? &config->functions[config->n_functions - 1] : NULL;
}

/* capture ARGUMENT KIND BYTES: of the function named last; BYTES hexadecimal */
static bool parse_capture(struct ml_snoop_config *config, char *value)
{
	struct ml_snoop_function *function = last_function(config);
	ml_u64 numbers[3];

	if (!function || function->n_captures == ML_SNOOP_CAPTURES || !parse_fields(value, 3, numbers) ||
	    numbers[0] > ML_CALL_RETURN || numbers[1] < ML_SNOOP_STRING || numbers[1] > ML_SNOOP_PATH ||
	    numbers[2] >= ML_SNOOP_DATA)
		return false;
	function->captures[function->n_captures++] = (struct ml_snoop_capture){ .argument = (ml_u8)numbers[0],
										.kind = (ml_u8)numbers[1],
										.bytes = (ml_u16)numbers[2] };
	return true;
}

/* filter ARGUMENT COMPARISON BITS VALUE: of the function named last; VALUE hexadecimal */
static bool parse_filter(struct ml_snoop_config *config, char *value)
{
	struct ml_snoop_function *function = last_function(config);
	ml_u64 numbers[4];

	if (!function || function->n_filters == ML_SNOOP_FILTERS || !parse_fields(value, 4, numbers) ||
	    numbers[0] >= ML_CALL_ARGUMENTS || numbers[1] < ML_SNOOP_EQ || numbers[1] > ML_SNOOP_SIGNED + ML_SNOOP_AND ||
	    numbers[2] > 64)
		return false;
	function->filters[function->n_filters++] = (struct ml_snoop_filter){ .argument = (ml_u32)numbers[0],
									     .comparison = (ml_u16)numbers[1],
									     .bits = (ml_u16)numbers[2],
									     .value = numbers[3] };
	return true;
}

static bool parse_pid(struct ml_snoop_config *config, const char *value)
{
	ml_u64 pid;

	if (config->n_pids == ML_SNOOP_PROCESSES || !parse_number(value, 0x7fffffff, &pid))
		return false;
	config->pids[config->n_pids++] = (int)pid;
	config->session.pid = (int)pid;
	return true;
}

static bool parse_thread(struct ml_snoop_config *config, const char *value)
{
	ml_u64 tid;

	if (config->n_threads == ML_SNOOP_WANTED_THREADS || !parse_number(value, 0x7fffffff, &tid))
		return false;
	config->threads[config->n_threads++] = (ml_u32)tid;
	return true;
}

static bool parse_flag(const char *value, bool *flag)
{
	ml_u64 number;

	if (!parse_number(value, 1, &number))
		return false;
	*flag = number != 0;
	return true;
}

static int take(void *context, const char *key, char *value)
{
	struct ml_snoop_config *config = context;

	if (!strcmp(key, "at"))
		return parse_site(config, value) ? 1 : -1;
	if (!strcmp(key, "object"))
		return parse_object(config, value) ? 1 : -1;
	if (!strcmp(key, "function"))
		return parse_function(config, value) ? 1 : -1;
	if (!strcmp(key, "capture"))
		return parse_capture(config, value) ? 1 : -1;
	if (!strcmp(key, "filter"))
		return parse_filter(config, value) ? 1 : -1;
	if (!strcmp(key, "pid"))
		return parse_pid(config, value) ? 1 : -1;
	if (!strcmp(key, "thread"))
		return parse_thread(config, value) ? 1 : -1;
	if (!strcmp(key, "rate"))
		return parse_number(value, ~0ull, &config->rate) ? 1 : -1;
	if (!strcmp(key, "without_multi"))
		return parse_flag(value, &config->without_multi) ? 1 : -1;
	if (!strcmp(key, "without_cookies"))
		return parse_flag(value, &config->without_cookies) ? 1 : -1;
	if (!strcmp(key, "without_atomics"))
		return parse_flag(value, &config->without_atomics) ? 1 : -1;
	return 0;
}

struct ml_snoop_config *ml_snoop_config_read(void)
{
	struct ml_snoop_config *config = calloc(1, sizeof(*config));

	if (!config)
		return NULL;
	config->sites = calloc(ML_SNOOP_SITES, sizeof(*config->sites));
	if (config->sites && !ml_config_read(&config->session, (struct ml_config_lines){ take, config }))
		return config;
	free(config->sites);
	free(config);
	return NULL;
}
