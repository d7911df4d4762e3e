// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/names.h"

#include "preload/freestanding/bytes.h"
#include "preload/recorder/connect.h"
#include "preload/segment/attach_abi.h"
#include "preload/entries/operators.h"
#include "preload/entries/originals.h"
#include "preload/entries/pairs.h"

#define EXEC_FORMS(X) X(execv) X(execvp) X(execl) X(execlp) X(execle)
#if __SIZEOF_LONG__ != 8 /* see interpose_regions.c */
#undef ML_REGION_FUNCTIONS
#define ML_REGION_FUNCTIONS(X)
#endif

/* The shim's own, because of -Bsymbolic. Entries in assembly have no C type here. */
#define DECLARE(function, ...) extern char function[];
ML_ALLOCATOR_FUNCTIONS(DECLARE)
ML_EXEC_FUNCTIONS(DECLARE)
EXEC_FORMS(DECLARE)
ML_REGION_FUNCTIONS(DECLARE)
ML_SELF_FUNCTIONS(DECLARE)
#define DECLARE_ENTRY(function) extern char ml_entry_##function[];
ML_OPERATORS_NEW(DECLARE_ENTRY)
ML_OPERATORS_DELETE(DECLARE_ENTRY)
ML_OPERATORS_RESIZE(DECLARE_ENTRY)

#define ADDRESS(function) (unsigned long)(function)
#define AT(variable) (unsigned long *)(void *)&(variable)
#define ORIGINAL(function, family) { #function, ADDRESS(function), AT(ml_original.function), family, 0 },
#define ALLOCATOR(function, ...) ORIGINAL(function, ML_HOOK_ALLOCATOR)
#define EXEC(function, ...) ORIGINAL(function, ML_HOOK_EXEC)
#define REGIONS(function, ...) ORIGINAL(function, ML_HOOK_REGIONS)
#define SELF(function, ...) ORIGINAL(function, ML_HOOK_SELF)
#define OPERATOR(function) { #function, ADDRESS(ml_entry_##function), AT(ml_operators.function), ML_HOOK_OPERATORS, 0 },
#define FORM(function) { #function, ADDRESS(function), NULL, ML_HOOK_EXEC, 0 },
#define LOADER(name, function, ...) { name, ADDRESS(ml_hook_##function), AT(ml_loader_original.function), ML_HOOK_LOADER, 0 },

#define ONE(...) +1
_Static_assert(0 ML_ALLOCATOR_FUNCTIONS(ONE) ML_EXEC_FUNCTIONS(ONE) EXEC_FORMS(ONE) ML_LOADER_FUNCTIONS(ONE)
			       ML_REGION_FUNCTIONS(ONE) ML_SELF_FUNCTIONS(ONE) ML_OPERATORS_NEW(ONE) ML_OPERATORS_DELETE(ONE)
				       ML_OPERATORS_RESIZE(ONE) <= ML_HOOKS_OWN,
	       "those of --pairs come behind our own");

struct ml_hook ml_hooks[ML_HOOKS] = { ML_ALLOCATOR_FUNCTIONS(ALLOCATOR) ML_EXEC_FUNCTIONS(EXEC) EXEC_FORMS(FORM)
					      ML_LOADER_FUNCTIONS(LOADER) ML_REGION_FUNCTIONS(REGIONS) ML_SELF_FUNCTIONS(SELF)
						      ML_OPERATORS_NEW(OPERATOR) ML_OPERATORS_DELETE(OPERATOR)
							      ML_OPERATORS_RESIZE(OPERATOR) };

enum ml_libc ml_hook_libc;

/* Index of the name among [from, to), or `to`. */
static unsigned int find(const char *name, unsigned int from, unsigned int to)
{
	while (from < to &&
	       !(ml_hooks[from].name && ml_hooks[from].name[0] == name[0] && ml_is_same_text(ml_hooks[from].name, name)))
		from++;
	return from;
}

unsigned int ml_hook_number(const char *name)
{
	unsigned int of_pairs = find(name, ML_HOOKS_OWN, ML_HOOKS), own;

	if (of_pairs < ML_HOOKS)
		return of_pairs;
	own = find(name, 0, ML_HOOKS_OWN);
	return own < ML_HOOKS_OWN ? own : ML_HOOKS;
}

#define CANDIDATES_MAX 16u

/*
 * Definitions of one allocator function, in lookup order. A call binds to the definition whose symbol version matches
 * libc's; others of the same name are skipped (glibc, elf/dl-lookup.c: check_match()).
 */
static struct candidates {
	struct ml_elf_definition all[CANDIDATES_MAX];
	unsigned int n;
	ElfW(Word) asked_for; /* hash of that version; 0 = libc has none, or was not scanned yet */
} candidates[ML_HOOKS_OWN];

/* The object that defines an operator. */
static struct definer {
	unsigned long low, high;
} definers[ML_HOOKS_OWN];

static void collect(struct candidates *of, const struct ml_elf *elf, const char *name, int is_libc)
{
	unsigned int n = ml_elf_definitions(elf, name, of->all + of->n, CANDIDATES_MAX - of->n);

	for (unsigned int i = of->n; i < of->n + n; i++)
		if (is_libc && of->all[i].is_default)
			of->asked_for = of->all[i].version;
	of->n += n;
}

static int answers(const struct ml_elf_definition *definition, ElfW(Word) asked_for)
{
	return asked_for && definition->version ? definition->version == asked_for : definition->is_default;
}

/*
 * To be called after the last module. If the definition is an ifunc, its real address is unknown, and later modules do
 * not count.
 */
static int bind(unsigned int number)
{
	const struct candidates *of = &candidates[number];

	for (unsigned int i = 0; i < of->n; i++)
		if (answers(&of->all[i], of->asked_for)) {
			ml_hooks[number].real = of->all[i].is_chosen ? 0 : of->all[i].address;
			return of->all[i].is_chosen;
		}
	return 0;
}

void ml_hook_scan_module(const struct ml_elf *elf, const struct ml_module *module)
{
	enum ml_libc libc = ml_elf_find(elf, "gnu_get_libc_version")  ? ML_LIBC_GLIBC :
			    ml_elf_find(elf, "__system_property_get") ? ML_LIBC_BIONIC :
									ML_LIBC_UNKNOWN;

	if (libc != ML_LIBC_UNKNOWN)
		ml_hook_libc = libc;
	ml_connect_session.is_bionic = ml_hook_libc == ML_LIBC_BIONIC;
	for (unsigned int i = 0; i < ML_HOOKS; i++)
		if (!ml_hooks[i].name || ml_hooks[i].real)
			continue;
		else if (ml_hooks[i].family == ML_HOOK_ALLOCATOR)
			collect(&candidates[i], elf, ml_hooks[i].name, libc != ML_LIBC_UNKNOWN);
		else if ((ml_hooks[i].real = ml_elf_find(elf, ml_hooks[i].name)) && ml_hooks[i].family == ML_HOOK_OPERATORS)
			definers[i] = (struct definer){ module->low, module->high };
}

/* Operators of another object than malloc's call malloc, which is hooked. */
static void drop_foreign_operators(void)
{
	unsigned long malloc = ml_hooks[0].real ? ml_hooks[0].real : (unsigned long)ml_original.malloc;

	for (unsigned int i = 0; i < ML_HOOKS_OWN; i++)
		if (ml_hooks[i].family == ML_HOOK_OPERATORS && (malloc < definers[i].low || malloc >= definers[i].high))
			ml_hooks[i].real = 0;
}

/* On bionic before Android 8 no module defines them. The __loader_ names are younger. */
static void search_linker(void)
{
	for (unsigned int i = 0; i < ML_HOOKS; i++)
		if (ml_hooks[i].name && ml_hooks[i].family == ML_HOOK_LOADER && !ml_hooks[i].real && ml_hooks[i].name[0] != '_')
			ml_hooks[i].real = ml_linker_find(ml_hooks[i].name);
}

static struct ml_pair_name pair_names[ML_PAIR_NAMES];

void ml_hook_name_pairs(const struct ml_view *view)
{
	const struct ml_pair_table *pairs = view ? view->pairs : NULL;
	ml_u32 n_names = !pairs ? 0 : pairs->n_names < ML_PAIR_NAMES ? pairs->n_names : ML_PAIR_NAMES;

	if (view)
		ml_pairs_begin(view);
	else
		ml_pairs_end();
	for (ml_u32 i = 0; i < ML_PAIR_NAMES; i++)
		ml_hooks[ML_HOOKS_OWN + i].name = NULL;
	for (ml_u32 i = 0; i < n_names; i++) {
		pair_names[i] = pairs->names[i];
		pair_names[i].name[ML_PAIR_NAME_BYTES - 1] = 0;
		ml_hooks[ML_HOOKS_OWN + i] = (struct ml_hook){ pair_names[i].name, 0, NULL, ML_HOOK_PAIRS, 0 };
	}
}

/* After the last module. In a process that was started with the shim, malloc's family is known already. */
static void set_originals(unsigned int families)
{
	if (ml_hook_libc == ML_LIBC_UNKNOWN)
		ml_hook_libc = ML_LIBC_OTHER;
	if (ml_hook_libc == ML_LIBC_BIONIC)
		search_linker();
	drop_foreign_operators();
	for (unsigned int i = 0; i < ML_HOOKS; i++)
		if (ml_hooks[i].real && ml_hooks[i].original && families & ML_HOOK_BIT(ml_hooks[i].family))
			*ml_hooks[i].original = ml_hooks[i].real;
}

/*
 * A pair's function may be one that we replace ourselves (syscall, operator new): its entry then forwards to ours. Where our
 * entries are interposed, slots lead there already.
 */
static unsigned long original_of_pair(struct ml_hook *hook)
{
	unsigned int own = find(hook->name, 0, ML_HOOKS_OWN);

	if (own == ML_HOOKS_OWN || !ml_hooks[own].real) /* another object's operator new */
		return hook->real;
	if (ml_originals_are_interposed && ml_hooks[own].family == ML_HOOK_SELF)
		hook->real = ml_hooks[own].entry;
	return ml_hooks[own].entry;
}

void ml_hook_adopt_pairs(void)
{
	set_originals(ML_HOOKS_OF_PRELOAD);
	for (unsigned int i = ML_HOOKS_OWN; i < ML_HOOKS; i++)
		if (ml_hooks[i].name && ml_hooks[i].real && pair_names[i - ML_HOOKS_OWN].is_size_function)
			ml_pairs_size_by(pair_names[i - ML_HOOKS_OWN].function, ml_hooks[i].real);
	for (unsigned int i = ML_HOOKS_OWN; i < ML_HOOKS; i++) {
		if (ml_hooks[i].name && ml_hooks[i].real && !pair_names[i - ML_HOOKS_OWN].is_size_function)
			ml_hooks[i].entry =
				ml_pairs_bind(pair_names[i - ML_HOOKS_OWN].function, original_of_pair(&ml_hooks[i]));
		if (!ml_hooks[i].entry)
			ml_hooks[i].real = 0; /* the slot keeps its function */
	}
}

/* Returns enum ml_attach_result. */
static int bind_allocator(void)
{
	unsigned int n_needed = 0, n_chosen = 0;

	for (unsigned int i = 0; i < ML_HOOKS_OWN; i++) {
		int is_needed = ml_hooks[i].original == AT(ml_original.malloc) || ml_hooks[i].original == AT(ml_original.free);

		if (ml_hooks[i].family == ML_HOOK_ALLOCATOR && !ml_hooks[i].real)
			n_chosen += bind(i) && is_needed;
		n_needed += is_needed && ml_hooks[i].real;
		candidates[i].n = 0;
	}
	return n_needed == 2 ? ML_ATTACH_OK : n_chosen ? ML_ATTACH_CHOSEN : ML_ATTACH_NO_ALLOCATOR;
}

int ml_hook_knows_allocator;

int ml_hook_adopt(void)
{
	int result = bind_allocator();

	if (result != ML_ATTACH_OK)
		return result;
	ml_hook_knows_allocator = 1;
	set_originals(~0u);
	ml_originals_adopt();
	return ML_ATTACH_OK;
}
