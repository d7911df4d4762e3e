// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/modules.h"

#include <sys/mman.h>

#include "preload/freestanding/bytes.h"
#include "preload/freestanding/syscalls.h"
#include "preload/hooks/elf.h"
#include "preload/hooks/relocations.h"

#define SEGMENTS_MAX 256u
#if __SIZEOF_LONG__ == 8 /* bionic, libc/include/dlfcn.h */
#define BIONIC_RTLD_DEFAULT ((void *)0)
#else
#define BIONIC_RTLD_DEFAULT ((void *)-1)
#endif

typedef int (*visit_info)(struct dl_phdr_info *info, size_t bytes, void *context);
typedef int (*iterate)(visit_info visit, void *context);

extern int dl_iterate_phdr(visit_info visit, void *context) __attribute__((weak));

/* ---- one module ---------------------------------------------------------------------------------------- */

static void add_segment(struct ml_module *module, const ElfW(Phdr) * segment)
{
	unsigned long low = module->base + segment->p_vaddr, high = low + segment->p_memsz;

	switch (segment->p_type) {
	case PT_LOAD:
		if (!module->high || low < module->low)
			module->low = low;
		if (high > module->high)
			module->high = high;
		break;
	case PT_DYNAMIC: module->dynamic = low; break;
	case PT_GNU_RELRO:
		module->relro_low = low;
		module->relro_high = high;
		break;
	}
}

/* By its mapped program headers. -1: it has no segments or no dynamic section. */
static int describe(struct ml_module *module, const struct ml_mappings *maps, unsigned long base, const ElfW(Phdr) * segments,
		    size_t n)
{
	*module = (struct ml_module){ .name = "", .base = base };
	if (!segments || n > SEGMENTS_MAX || !ml_mappings_can_read(maps, (unsigned long)segments, n * sizeof(*segments)))
		return -1;
	for (size_t i = 0; i < n; i++)
		add_segment(module, &segments[i]);
	return module->dynamic && module->high ? 0 : -1;
}

struct tour {
	struct ml_mappings maps;
	ml_visit_module *visit;
	void *context;
	int error;
};

static int visit_loaded(struct dl_phdr_info *info, size_t bytes, void *context)
{
	struct tour *tour = context;
	struct ml_module module;

	(void)bytes;
	if (!tour->maps.ranges)
		tour->error = ml_mappings_read(&tour->maps);
	if (tour->error)
		return 1;
	if (describe(&module, &tour->maps, info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum))
		return 0;
	if (info->dlpi_name)
		module.name = info->dlpi_name;
	tour->visit(tour->context, &tour->maps, &module);
	return 0;
}

/* ---- the dynamic linker's own functions ---------------------------------------------------------------- */

struct search {
	struct ml_mappings maps;
	const char *name;
	unsigned long found;
	/* the current module */
	struct ml_elf elf;
	unsigned long dlsym; /* the value of its slot for dlsym() */
};

static int is_libc(const char *path)
{
	const char *name = ml_file_name(path);

	return ml_starts_with(name, "libdl.so") || ml_starts_with(name, "libc.so") || ml_starts_with(name, "linker") ||
	       ml_starts_with(name, "ld-");
}

static int is_code(const struct search *search, unsigned long address)
{
	const struct ml_own_mapping *range = ml_mappings_find(&search->maps, address);

	return range && range->protection & PROT_EXEC;
}

static long is_linker_at(void *context, const struct ml_own_mapping_line *line)
{
	const unsigned long *address = context;

	if (*address < line->range.low || *address >= line->range.high)
		return 0;
	return line->range.protection & PROT_EXEC && ml_starts_with(ml_file_name(line->path), "linker") ? 1 : -1;
}

static int is_linker_code(unsigned long address)
{
	return ml_mappings_each(is_linker_at, &address) == 1;
}

static void visit_slot(void *context, const struct ml_relocation *relocation)
{
	struct search *search = context;
	const char *name = ml_elf_symbol_name(&search->elf, relocation->symbol);
	unsigned long slot = relocation->address;

	if (!search->dlsym && name && ml_is_same_text(name, "dlsym") && !relocation->addend && slot % sizeof(slot) == 0 &&
	    ml_mappings_can_read(&search->maps, slot, sizeof(slot)))
		search->dlsym = __atomic_load_n((const unsigned long *)slot, __ATOMIC_RELAXED);
}

static int is_open(struct search *search, const struct ml_own_mapping_line *line)
{
	const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)line->range.low;
	struct ml_module module;

	return ml_mappings_can_read(&search->maps, line->range.low, sizeof(*header)) &&
	       ml_starts_with((const char *)header->e_ident, ELFMAG) && header->e_phentsize == sizeof(ElfW(Phdr)) &&
	       header->e_phoff % sizeof(long) == 0 &&
	       !describe(&module, &search->maps, line->range.low, (const ElfW(Phdr) *)(line->range.low + header->e_phoff),
			 header->e_phnum) &&
	       !ml_elf_open(&search->elf, &search->maps, module.base, module.dynamic);
}

/* Skips files that are mapped as data: their segments are not where the header says, and hold no code. */
static long search_file(void *context, const struct ml_own_mapping_line *line)
{
	struct search *search = context;

	if (line->file_offset || !is_libc(line->path) || !is_open(search, line))
		return 0;
	search->found = ml_elf_find(&search->elf, search->name);
	if (!is_code(search, search->found))
		search->found = 0;
	if (!search->found && !is_linker_code(search->dlsym)) {
		search->dlsym = 0;
		ml_relocations_each(&search->elf, visit_slot, search);
	}
	return search->found != 0;
}

unsigned long ml_linker_find(const char *name)
{
	struct search search = { .name = name };

	if (ml_mappings_read(&search.maps))
		return 0;
	ml_mappings_each(search_file, &search);
	ml_mappings_drop(&search.maps);
	if (!search.found && is_linker_code(search.dlsym)) {
		search.found = ((unsigned long (*)(void *, const char *))search.dlsym)(BIONIC_RTLD_DEFAULT, name);
		search.found = is_linker_code(search.found) ? search.found : 0;
	}
	return search.found;
}

/* ---- finding dl_iterate_phdr() -------------------------------------------------------------------------- */

static iterate find_iterate(void)
{
	static unsigned long found; /* racing threads find the same */

	if (dl_iterate_phdr)
		return dl_iterate_phdr;
	if (!__atomic_load_n(&found, __ATOMIC_RELAXED))
		__atomic_store_n(&found, ml_linker_find("dl_iterate_phdr"), __ATOMIC_RELAXED);
	return (iterate)__atomic_load_n(&found, __ATOMIC_RELAXED);
}

int ml_modules_each(ml_visit_module *visit, void *context)
{
	struct tour tour = { .visit = visit, .context = context };
	iterate function = find_iterate();

	if (!function)
		return -ENOSYS;
	function(visit_loaded, &tour);
	ml_mappings_drop(&tour.maps);
	return tour.error;
}
