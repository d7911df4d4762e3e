// SPDX-License-Identifier: Apache-2.0
#include "preload/hooks/modules.h"

#include "preload/freestanding/syscalls.h"
#include "preload/hooks/elf.h"
#include "preload/hooks/linker.h"

#define SEGMENTS_MAX 256u

typedef int (*visit_info)(struct dl_phdr_info *info, size_t bytes, void *context);
typedef int (*iterate)(visit_info visit, void *context);

extern int dl_iterate_phdr(visit_info visit, void *context) __attribute__((weak));

/* ---- what the loader tells of one ----------------------------------------------------------------------- */

static void add_segment(struct ml_module *module, const ElfW(Phdr) *segment)
{
	unsigned long low = module->base + segment->p_vaddr, high = low + segment->p_memsz;

	switch (segment->p_type) {
	case PT_LOAD:
		if (!module->high || low < module->low)
			module->low = low;
		if (high > module->high)
			module->high = high;
		break;
	case PT_DYNAMIC:
		module->dynamic = low;
		break;
	case PT_GNU_RELRO:
		module->relro_low = low;
		module->relro_high = high;
		break;
	}
}

int ml_module_describe(struct ml_module *module, const struct ml_hook_maps *maps, unsigned long base,
		       const ElfW(Phdr) *segments, size_t n)
{
	*module = (struct ml_module){ .name = "", .base = base };
	if (!segments || n > SEGMENTS_MAX || !ml_hook_maps_can_read(maps, (unsigned long)segments, n * sizeof(*segments)))
		return -1;
	for (size_t i = 0; i < n; i++)
		add_segment(module, &segments[i]);
	return module->dynamic && module->high ? 0 : -1;
}

struct tour {
	struct ml_hook_maps *maps;
	int (*visit)(void *context, const struct ml_module *module);
	void *context;
	int error;
};

static int visit_one(struct dl_phdr_info *info, size_t bytes, void *context)
{
	struct tour *tour = context;
	struct ml_module module;

	(void)bytes;
	if (!tour->maps->ranges)
		tour->error = ml_hook_maps_read(tour->maps);
	if (tour->error)
		return 1;
	if (ml_module_describe(&module, tour->maps, info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum))
		return 0;
	if (info->dlpi_name)
		module.name = info->dlpi_name;
	return tour->visit(tour->context, &module);
}

/* ---- finding dl_iterate_phdr() -------------------------------------------------------------------------- */

static iterate find_iterate(void)
{
	static unsigned long found; /* what races finds the same */

	if (dl_iterate_phdr)
		return dl_iterate_phdr;
	if (!__atomic_load_n(&found, __ATOMIC_RELAXED))
		__atomic_store_n(&found, ml_linker_find("dl_iterate_phdr"), __ATOMIC_RELAXED);
	return (iterate)__atomic_load_n(&found, __ATOMIC_RELAXED);
}

int ml_modules_each(struct ml_hook_maps *maps, int (*visit)(void *context, const struct ml_module *module), void *context)
{
	struct tour tour = { maps, visit, context, 0 };
	iterate function = find_iterate();

	*maps = (struct ml_hook_maps){ NULL, 0 };
	if (!function)
		return -ENOSYS;
	function(visit_one, &tour);
	return tour.error;
}
