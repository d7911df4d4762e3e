/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process whose list of libraries and their tables lie, and texts of mappings that do. Arguments: seconds and seed. Writes what does
 * not hold. Under sanitizers; every reading comes to an end.
 */
#include "../../../support/programs/libc.h"
#include <link.h>

#include "agent_stubs.h"
#include "agent/process/process_maps.h"
#include "agent/process/target_objects.h"
#include "checks.h"

#define OBJECTS 4
#define SYMBOLS 8
#define ENDLESS_S 60 /* SIGALRM then ends the program: a list has no end */

/* Shared with the process, at the same address. */
static struct world {
	struct link_map list[OBJECTS];
	struct tables {
		ElfW(Dyn) dynamic[6];
		ml_u32 gnu_hash[4 + 2 + 1 + SYMBOLS]; /* head, a word of the Bloom filter, a bucket, chains */
		ml_u32 hash[2 + 1 + SYMBOLS];
		ElfW(Sym) symbols[SYMBOLS];
		char strings[64], name[32];
	} tables[OBJECTS];
} *world;

static unsigned long n_functions, n_lines;

/* ---- the process -------------------------------------------------------------------------------------- */

static void run_process(int ready)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_DEBUG)
			((struct r_debug *)entry->d_un.d_ptr)->r_map = world->list;
	check(write(ready, "", 1) == 1, "the process cannot begin");
	for (;;)
		pause();
}

static pid_t start_process(void)
{
	int ends[2];
	char byte;
	pid_t pid;

	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(world != MAP_FAILED && !pipe(ends), "no memory");
	pid = fork();
	if (!pid)
		run_process(ends[1]);
	check(read(ends[0], &byte, 1) == 1, "no process");
	return pid;
}

/* ---- what it says ------------------------------------------------------------------------------------- */

static void write_tables(struct tables *tables, bool has_gnu_hash)
{
	const ElfW(Dyn) dynamic[] = {
		{ DT_SYMTAB, { (size_t)tables->symbols } },
		{ DT_STRTAB, { (size_t)tables->strings } },
		{ DT_STRSZ, { sizeof(tables->strings) } },
		{ has_gnu_hash ? DT_GNU_HASH : DT_HASH, { (size_t)(has_gnu_hash ? tables->gnu_hash : tables->hash) } },
		{ DT_NULL, { 0 } },
	};

	memset(tables, 0, sizeof(*tables));
	memcpy(tables->dynamic, dynamic, sizeof(dynamic));
	memcpy(tables->gnu_hash, ((ml_u32[]){ 1, 1, 1, 0 }), 16);
	tables->gnu_hash[6] = 1; /* the bucket's first symbol; the chain's end has bit 0 */
	tables->gnu_hash[4 + 2 + 1 + SYMBOLS - 2] = 1;
	tables->hash[1] = SYMBOLS;
	strcpy(tables->name, "/usr/lib/libc.so.6");
	for (int i = 1; i < SYMBOLS; i++) {
		memcpy(tables->strings + 8 * i, (char[]){ 'f', (char)('0' + i), 0 }, 3);
		tables->symbols[i] = (ElfW(
			Sym)){ .st_name = 8u * i, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 4096u * i, .st_size = 16 };
	}
}

static void write_world(void)
{
	for (int i = 0; i < OBJECTS; i++) {
		write_tables(&world->tables[i], i % 2);
		world->list[i] = (struct link_map){ .l_name = world->tables[i].name,
						    .l_ld = world->tables[i].dynamic,
						    .l_next = i + 1 < OBJECTS ? &world->list[i + 1] : NULL };
	}
}

static ml_u64 lie(void)
{
	static const ml_u64 extremes[] = { 0,     1,         2,          7,          0xffff,      1ull << 20, 0xffffffff,
					   ~0ull, ~0ull - 7, 1ull << 63, 1ull << 32, 64ull << 20, 0x7fffffff, 4096 };

	switch (random_below(3)) {
	case 0: return (size_t)world + random_below(sizeof(*world) / 8) * 8;
	case 1: return random_below(64);
	default: return extremes[random_below(sizeof(extremes) / sizeof(*extremes))];
	}
}

static void falsify(void)
{
	for (unsigned n = random_below(12); n; n--) {
		ml_u64 word = lie();
		size_t bytes = random_below(2) ? 8 : 4, at = random_below(sizeof(*world) / (unsigned)bytes) * bytes;

		memcpy((char *)world + at, &word, bytes);
	}
}

/* ---- the agent ---------------------------------------------------------------------------------------- */

static void read_functions(pid_t pid, const struct ml_target_object *object)
{
	size_t n;
	struct ml_target_symbol *functions = ml_target_functions((ml_u32)pid, object, &n);

	for (size_t i = 0; i < n; i++)
		check(strlen(functions[i].name) <= object->strings_bytes &&
			      (!i || functions[i - 1].start <= functions[i].start),
		      "functions without an order");
	n_functions += n;
	free(functions);
	ml_target_function((ml_u32)pid, object, "f3");
}

static void read_process(pid_t pid)
{
	struct ml_target_objects objects;
	bool is_read;

	write_world();
	falsify();
	alarm(ENDLESS_S);
	is_read = !ml_target_objects_read(&objects, (ml_u32)pid);
	for (size_t i = 0; is_read && i < objects.n && i < OBJECTS; i++)
		read_functions(pid, &objects.objects[i]);
	ml_target_objects_named(&objects, "libc.so.6");
	ml_target_objects_free(&objects);
}

/* A process chooses the names of its files; the rest is damaged too. */
static void read_maps(void)
{
	static const char line[] =
		"7f0012340000-7f0012341000 r-xp 00001000 fd:01 4711                       /usr/lib/libc.so.6 (deleted)\n"
		"7ffc0000-7ffd0000 rw-p 00000000 00:00 0 [stack]\n"
		"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
	size_t n = random_below(sizeof(line));
	char *text = malloc(n + 1); /* no byte behind its end is readable */
	struct ml_maps_line found;

	memcpy(text, line, n);
	text[n] = '\0';
	for (unsigned damages = n ? random_below(6) : 0; damages; damages--)
		text[random_below((unsigned)n)] = "\n -:0f\x7f\xff"[random_below(8)];
	for (const char *at = text; (at = ml_process_maps_line(at, &found)); n_lines++)
		check(at <= text + n && found.path >= text && found.path + found.path_bytes < at, "a path behind its line");
	for (const char *at = text; (at = ml_process_maps_code(at, &found));)
		check(found.permissions[2] == 'x', "code that is none");
	free(text);
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	pid_t pid = start_process();

	srand(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
	do {
		read_process(pid);
		for (int i = 0; i < 100; i++)
			read_maps();
	} while (time(NULL) < end);
	kill(pid, SIGKILL);
	check(n_functions && n_lines, "nothing was read: nothing was put to the test");
	return 0;
}
