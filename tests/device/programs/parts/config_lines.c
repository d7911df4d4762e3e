/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration lines at random: sound ones, damaged ones, and any bytes, for the readers of all sessions. Arguments: seconds and seed.
 * Writes what does not hold of a configuration that was accepted. Under sanitizers.
 */
#include "../../../support/programs/libc.h"

#include "agent/inject/patch_plan.h"
#include "agent/protocol/blocks.h"
#include "agent/snoop/config.h"
#include "checks.h"

#define INPUT_BYTES_MAX (64u << 10)
#define READINGS 2000 /* of a process, which keeps what it was told */

static char input[INPUT_BYTES_MAX + 64];
static size_t fill;
static unsigned long n_accepted;

/* ---- what the parts call ------------------------------------------------------------------------------ */

int ml_blocks_error(enum ml_reason reason, const char *format, ...)
{
	char text[512];
	va_list arguments;

	(void)reason;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	return -1;
}

int ml_blocks_log(const char *format, ...)
{
	return (void)format, 0;
}

void ml_host_expect(ml_u32 silence_s)
{
	(void)silence_s;
}

void ml_host_heard(void)
{
}

bool ml_host_is_silent(void)
{
	return false;
}

/* ---- lines -------------------------------------------------------------------------------------------- */

static void add(const char *text)
{
	size_t n = strlen(text);

	if (fill + n < INPUT_BYTES_MAX) {
		memcpy(input + fill, text, n);
		fill += n;
	}
}

static void add_number(void)
{
	static const char *const extremes[] = {
		"0", "1", "ffffffffffffffff", "18446744073709551616", "-1", "7fffffff", "40", "65536", "4096", "0x10", "", "8"
	};
	char text[24];

	snprintf(text, sizeof(text), random_below(2) ? "%u" : "%x",
		 random_below(random_below(3) ? 3 :
			      random_below(2) ? 70 :
						1u << 30));
	add(random_below(16) ? text : extremes[random_below(12)]);
}

/* # a number, & a path or name, @ two digits of bytes, : moves */
static void add_field(char kind)
{
	static const char *const names[] = { "/usr/lib/libc.so.6", "a%20b", "%", "%0", "%zz", "%00x", "-", "" };

	switch (kind) {
	case '#': add_number(); break;
	case '&': add(names[random_below(8)]); break;
	case '@':
		for (unsigned n = 1 + random_below(random_below(8) ? 8 : 300); n; n--)
			add(random_below(50) ? "9c" : "f");
		break;
	case ':':
		for (unsigned n = 1 + random_below(random_below(4) ? 3 : 40); n; n--) {
			add(random_below(99) ? "1a:2b" : "1a:");
			add(n > 1 ? "," : "");
		}
		break;
	default: add((char[]){ kind, 0 });
	}
}

enum reader { PLAIN, PATCHES, SNOOP, READERS };

#define ZEROS " 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"

/* Of all sessions, then of those of one kind. */
static const char *const forms[][24] = {
	{ "rule 1 0 0 1 1 0 1 1 0 8 1" ZEROS,
	  "rule 40 0 1 1 1 0 1 1 0 8 1" ZEROS,
	  "rule # 0 # 1 # # 1 # 0 8 #" ZEROS,
	  "probe 1 # # # # # &",
	  "probe 20 # # - # # &",
	  "probe # # # - # # &",
	  "file # # # # &",
	  "exits 2 # #",
	  "exits # # #",
	  "pair_name 40 &",
	  "pair_size # &",
	  "arg &",
	  "env &=&",
	  "stdio # # #",
	  "await &",
	  "shim &",
	  "hook plt",
	  "unwind fp",
	  "pid #",
	  "max_live #",
	  "whole_machine #",
	  "host_silence_s #",
	  "start",
	  "& &" },
	{ "patch 9 - 9c9c 9c9c 9 9c : :", "patch # @ 9c9c 9c9c # @ : :", "patch # @ @ @ # @ : :", "slot # #" },
	{ "object # &", "at # # #", "function 1", "function #", "capture # 1 #", "filter # 1 #", "thread #", "rate #",
	  "without_cookies #", "pid #" },
};
static const unsigned n_forms[READERS] = { 24, 4, 10 };

static void add_line(enum reader reader)
{
	unsigned kind = random_below(2) ? reader : PLAIN;
	const char *form = forms[kind][random_below(n_forms[kind])];

	for (unsigned n = random_below(40) ? 1 : random_below(400); n; n--) {
		for (const char *at = form; *at; at++)
			add_field(*at);
		add("\n");
	}
}

static void damage(void)
{
	for (unsigned n = 1 + random_below(8); n; n--)
		switch (random_below(3)) {
		case 0: input[random_below((unsigned)fill)] = (char)rand(); break;
		case 1: input[random_below((unsigned)fill)] = " \n%:,"[random_below(5)]; break;
		default: memset(input + random_below((unsigned)fill), "0 f\n"[random_below(4)], 1);
		}
}

static void make_input(enum reader reader)
{
	char version[32];

	fill = 0;
	snprintf(version, sizeof(version), "wire %u\n", ML_WIRE_VERSION);
	add(version);
	for (unsigned n = random_below(random_below(2) ? 3 : 12); n; n--)
		add_line(reader);
	if (!random_below(3))
		damage();
	add(input[fill - 1] == '\n' ? "" : "\n");
	add(random_below(2) ? "pid 7\nstart\n" : "start\n");
}

/* ---- readings ----------------------------------------------------------------------------------------- */

static void check_session(const struct ml_config *config)
{
	n_accepted++;
	check(config->n_probes <= ML_MAX_PROBES && config->n_exits <= ML_MAX_EXITS, "more probes than there is room for");
	check(config->n_pairs <= ML_FN_MAX - ML_FN_PAIR && config->n_pair_names <= ML_PAIR_NAMES_MAX,
	      "more pairs than numbers");
	for (int i = 0; i < config->n_probes; i++)
		check(config->probes[i].file < config->n_files && config->probes[i].function < ML_FN_MAX, "a probe in no file");
	for (int i = 0; i < config->n_exits; i++)
		check(config->exits[i].probe < config->n_probes, "an exit of no probe");
	for (int i = 0; i < config->n_pair_names; i++)
		check(config->pair_names[i].function < (ml_u32)config->n_pairs, "a name of no pair");
	check(!config->argv || !config->argv[config->n_arguments], "arguments without an end");
	check(!config->env_changes || !config->env_changes[config->n_env_changes], "an environment without an end");
}

static void check_snoop(const struct ml_snoop_config *config)
{
	for (ml_u32 i = 0; i < config->n_sites; i++)
		check(config->sites[i].file < config->n_files && config->sites[i].function < config->n_functions,
		      "a site of no function");
	for (ml_u32 i = 0; i < config->n_files; i++)
		check(config->files[i].file < config->session.n_files, "a file that has no path");
	for (ml_u32 i = 0; i < config->n_functions; i++)
		check(config->functions[i].n_captures <= ML_SNOOP_CAPTURES &&
			      config->functions[i].n_filters <= ML_SNOOP_FILTERS,
		      "more captures than there is room for");
}

static void check_patches(const struct ml_patches *patches)
{
	for (size_t i = 0; i < patches->n; i++)
		check(patches->patches[i].n_bytes <= ML_PATCH_BYTES_MAX && patches->patches[i].n_code <= ML_PATCH_CODE_MAX &&
			      patches->patches[i].n_moves <= ML_PATCH_MOVES_MAX &&
			      patches->patches[i].n_returns <= ML_PATCH_MOVES_MAX &&
			      patches->patches[i].n_kept <= ML_PATCH_KEPT_MAX,
		      "a patch that is longer than its room");
}

static int take_none(void *context, const char *key, char *value)
{
	return (void)context, (void)key, (void)value, 0;
}

static void read_once(int memory)
{
	static struct ml_config config;
	static char line[ML_HOST_LINE_BYTES];
	struct ml_patches *patches = NULL;
	struct ml_snoop_config *snoop;
	enum reader reader = random_below(READERS);

	make_input(reader);
	if (pwrite(memory, input, fill, 0) != (ssize_t)fill || ftruncate(memory, (off_t)fill) || lseek(memory, 0, SEEK_SET))
		puts("no memory for the input");
	switch (reader) {
	case PLAIN:
		if (!ml_config_read(&config, (struct ml_config_lines){ take_none, NULL }))
			check_session(&config);
		break;
	case PATCHES:
		if (!ml_config_read(&config, (struct ml_config_lines){ ml_patch_take_line, &patches })) {
			check_session(&config);
			if (patches)
				check_patches(patches);
		}
		break;
	default:
		snoop = ml_snoop_config_read();
		if (snoop) {
			check_session(&snoop->session);
			check_snoop(snoop);
		}
	}
	while (!ml_host_line_wait(line)) /* what follows `start`, or a line that was refused */
		;
}

/* What a configuration holds is never freed by the agent: it ends with the process. */
static bool read_many(unsigned seed, int memory)
{
	pid_t child = fork();
	int status = 1;

	if (!child) {
		srand(seed);
		for (int i = 0; i < READINGS; i++)
			read_once(memory);
		fflush(stdout);
		_exit(n_accepted > READINGS / 20 ? 0 : 9);
	}
	waitpid(child, &status, 0);
	return !status;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	int memory = memfd_create("lines", 0);

	dup2(memory, STDIN_FILENO);
	do
		if (!read_many(seed, memory))
			printf("seed %u: a finding, or hardly a configuration was accepted\n", seed);
	while (seed++, time(NULL) < end);
	return 0;
}
