// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "agent/process/process_maps.h"
#include "agent/protocol/extend.h"

#define OWN_NAME "libmemleak.so"

/* Each between two spaces. */
static const char allocator_names[] =
	" malloc calloc realloc free cfree memalign aligned_alloc posix_memalign valloc pvalloc reallocarray"
	" malloc_usable_size malloc_trim mallinfo mallinfo2 mallopt malloc_stats malloc_info malloc_set_state"
	" malloc_get_state malloc_iterate malloc_disable malloc_enable __libc_malloc __libc_calloc __libc_realloc"
	" __libc_free __libc_memalign __libc_valloc __libc_pvalloc __libc_mallopt __libc_mallinfo"
	" __libc_reallocarray __libc_freeres free_sized free_aligned_sized ";

/* Functions of libc that hold locks of the dynamic linker or (fork) of the allocator, or run handlers under their own locks. */
static const char loader_names[] =
	" dlopen dlmopen dlclose dlsym dlvsym dladdr dladdr1 dlinfo dlerror dl_iterate_phdr __libc_dlopen_mode"
	" __libc_dlsym __libc_dlclose android_dlopen_ext fork __fork __libc_fork _Fork vfork __register_atfork"
	" pthread_atfork posix_spawn posix_spawnp __cxa_thread_atexit_impl exit quick_exit abort __cxa_finalize"
	" __tls_get_addr ";

static bool is_listed(const char *name, const char *names)
{
	size_t length = strlen(name);

	for (const char *at = names + 1; length && (at = strstr(at, name)); at += length)
		if (at[-1] == ' ' && at[length] == ' ')
			return true;
	return false;
}

static enum ml_inject_lock lock_of(const char *name)
{
	if (is_listed(name, allocator_names))
		return ML_LOCK_ALLOCATOR;
	return is_listed(name, loader_names) ? ML_LOCK_LOADER : ML_LOCK_NONE;
}

static int add(struct ml_inject_ranges *ranges, ml_u64 start, ml_u64 end, enum ml_inject_lock lock)
{
	if (!ML_EXTEND(ranges->ranges, ranges->n, ranges->room))
		return -1;
	ranges->ranges[ranges->n++] = (struct ml_inject_range){ start, end, lock };
	return 0;
}

/* From the end of the last other function before it to the start of the next one. */
static struct ml_inject_range spread(const struct ml_target_symbol *functions, size_t n, size_t i, enum ml_inject_lock lock)
{
	ml_u64 low = functions[i].start & ~0xfffffull, high = functions[i].end;

	for (size_t k = i; k-- > 0;)
		if (lock_of(functions[k].name) != lock) {
			low = functions[k].end < functions[i].start ? functions[k].end : functions[i].start;
			break;
		}
	for (size_t k = i + 1; k < n; k++)
		if (lock_of(functions[k].name) != lock) {
			high = functions[k].start > high ? functions[k].start : high;
			break;
		}
	return (struct ml_inject_range){ low, high, lock };
}

struct module {
	bool has_malloc, is_libc, is_linker, is_program;
};

/* Only ranges of the allocator's functions extend: those of the linker in libc lie beside code that every thread runs. */
static int add_functions(struct ml_inject_ranges *ranges, const struct ml_target_symbol *functions, size_t n,
			 const struct module *module)
{
	for (size_t i = 0; i < n; i++) {
		enum ml_inject_lock lock = lock_of(functions[i].name);
		struct ml_inject_range range = { functions[i].start, functions[i].end, lock };

		if (lock == ML_LOCK_NONE)
			continue;
		if (lock == ML_LOCK_ALLOCATOR || (module->is_linker && !strncmp(functions[i].name, "dl", 2)))
			range = spread(functions, n, i, lock);
		if (add(ranges, range.start, range.end, lock))
			return -1;
	}
	return 0;
}

/* The code of a whole object: up to the start of the next object's addresses. */
static int add_module(struct ml_inject_ranges *ranges, const struct ml_target_objects *objects,
		      const struct ml_target_object *object, enum ml_inject_lock lock, const char *maps)
{
	ml_u64 next = ~0ull;
	struct ml_maps_line line;
	int failed = 0;

	for (size_t i = 0; i < objects->n; i++)
		if (objects->objects[i].bias > object->bias && objects->objects[i].bias < next)
			next = objects->objects[i].bias;
	if (next == ~0ull)
		next = object->dynamic + (1ull << 24); /* the last object: its data are near its code */
	for (const char *at = maps; (at = ml_process_maps_code(at, &line));)
		if (line.start >= object->bias && line.start < next)
			failed |= add(ranges, line.start, line.end, lock);
	return failed;
}

static int read_object(struct ml_inject_ranges *ranges, const struct ml_target_objects *objects,
		       const struct ml_target_object *object, const char *maps)
{
	size_t n;
	struct ml_target_symbol *functions = ml_target_functions(objects->pid, object, &n);
	struct module module = { .has_malloc = ml_target_functions_find(functions, n, "malloc"),
				 .is_libc = ml_target_functions_find(functions, n, "printf"),
				 .is_linker = object->bias == objects->interpreter && objects->interpreter,
				 .is_program = object == objects->objects };
	size_t length = strlen(object->path), own = sizeof(OWN_NAME) - 1;
	bool is_ours = (length >= own && !strcmp(object->path + length - own, OWN_NAME)) ||
		       ml_target_functions_find(functions, n, "memleak_attach"); /* a memory file */
	int failed;

	if (is_ours)
		failed = add_module(ranges, objects, object, ML_LOCK_ALLOCATOR, maps);
	else if (module.is_linker && !module.is_libc)
		failed = add_module(ranges, objects, object, ML_LOCK_LOADER, maps);
	else if (module.has_malloc && !module.is_libc && !module.is_program)
		failed = add_module(ranges, objects, object, ML_LOCK_ALLOCATOR, maps);
	else
		failed = add_functions(ranges, functions, n, &module);
	free(functions);
	return failed;
}

int ml_inject_ranges_read(struct ml_inject_ranges *ranges, const struct ml_target_objects *objects)
{
	char *maps = ml_process_maps_read(objects->pid, NULL);
	int failed = maps ? 0 : -1;

	*ranges = (struct ml_inject_ranges){ 0 };
	for (size_t i = 0; i < objects->n && !failed; i++)
		failed = read_object(ranges, objects, &objects->objects[i], maps);
	free(maps);
	return failed;
}

void ml_inject_ranges_free(struct ml_inject_ranges *ranges)
{
	free(ranges->ranges);
	*ranges = (struct ml_inject_ranges){ 0 };
}

enum ml_inject_lock ml_inject_ranges_find(const struct ml_inject_ranges *ranges, ml_u64 address)
{
	for (size_t i = 0; i < ranges->n; i++)
		if (address - ranges->ranges[i].start < ranges->ranges[i].end - ranges->ranges[i].start)
			return ranges->ranges[i].lock;
	return ML_LOCK_NONE;
}
