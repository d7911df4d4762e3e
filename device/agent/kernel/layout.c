// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/layout.h"

#include <bpf/btf.h>
#include <stdio.h>
#include <string.h>

#include "agent/probes/libbpf.h"
#include "agent/probes/tracefs.h"

/* include/trace/events/kmem.h and percpu.h, from 5.10 to 6.18. */
const struct ml_kernel_source ml_kernel_sources[ML_KERNEL_EVENTS] = {
	[ML_KERNEL_KMALLOC] = { "kmalloc", "kmem", "kmalloc", .pointer = { "ptr" }, .size = { "bytes_alloc" },
				.size_bytes = 8 },
	[ML_KERNEL_KMALLOC_NODE] = { "kmalloc_node", "kmem", "kmalloc_node", .is_optional = true, .pointer = { "ptr" },
				     .size = { "bytes_alloc" }, .size_bytes = 8 },
	[ML_KERNEL_KFREE] = { "kfree", "kmem", "kfree", .is_release = true, .pointer = { "ptr" } },
	[ML_KERNEL_CACHE_ALLOC] = { "kmem_cache_alloc", "kmem", "kmem_cache_alloc", .pointer = { "ptr" },
				    .size = { "bytes_alloc" }, .cache = "s", .size_bytes = 8 },
	[ML_KERNEL_CACHE_ALLOC_NODE] = { "kmem_cache_alloc_node", "kmem", "kmem_cache_alloc_node", .is_optional = true,
					 .pointer = { "ptr" }, .size = { "bytes_alloc" }, .cache = "s", .size_bytes = 8 },
	[ML_KERNEL_CACHE_FREE] = { "kmem_cache_free", "kmem", "kmem_cache_free", .is_release = true, .pointer = { "ptr" } },
	[ML_KERNEL_PAGE_ALLOC] = { "mm_page_alloc", "kmem", "mm_page_alloc", .group = ML_KERNEL_OF_PAGES,
				   .pointer = { "page", "pfn" }, .size = { "order" }, .size_bytes = 4 },
	[ML_KERNEL_PAGE_FREE] = { "mm_page_free", "kmem", "mm_page_free", .is_release = true, .group = ML_KERNEL_OF_PAGES,
				  .pointer = { "page", "pfn" } },
	[ML_KERNEL_PERCPU_ALLOC] = { "percpu_alloc_percpu", "percpu", "percpu_alloc_percpu", .group = ML_KERNEL_OF_PERCPU,
				     .pointer = { "ptr" }, .size = { "bytes_alloc", "size" }, .size_bytes = 8 },
	[ML_KERNEL_PERCPU_FREE] = { "percpu_free_percpu", "percpu", "percpu_free_percpu", .is_release = true,
				    .group = ML_KERNEL_OF_PERCPU, .pointer = { "ptr" } },
};

/* Number of the argument of this name, or -1. The first parameter is the tracepoint's own datum. */
static int argument(const struct btf *btf, const struct btf_type *prototype, const char *name)
{
	const struct btf_param *parameter = btf_params(prototype);

	for (int i = 1; i < btf_vlen(prototype); i++)
		if (!strcmp(btf__name_by_offset(btf, parameter[i].name_off), name))
			return i - 1;
	return -1;
}

static struct ml_kernel_field argument_field(const struct btf *btf, const struct btf_type *prototype, const char *name)
{
	int number = name && prototype ? argument(btf, prototype, name) : -1;

	/* struct bpf_raw_tracepoint_args: a word for each */
	return number < 0 ? (struct ml_kernel_field){ 0, 0 } : (struct ml_kernel_field){ 8 * (ml_u32)number, 8 };
}

/* The function that calls the programs of a tracepoint has named arguments in BTF. */
static const struct btf_type *event_prototype(const struct btf *btf, const char *event)
{
	char name[64];
	int id;

	snprintf(name, sizeof(name), "__traceiter_%s", event);
	id = btf__find_by_name_kind(btf, name, BTF_KIND_FUNC);
	return id < 0 ? NULL : btf__type_by_id(btf, btf__type_by_id(btf, (ml_u32)id)->type);
}

static struct ml_kernel_field first_found(struct ml_kernel_field one, struct ml_kernel_field other)
{
	return one.bytes ? one : other;
}

static bool is_whole(const struct ml_kernel_source *source, const struct ml_kernel_event *event)
{
	return event->pointer.bytes && (source->is_release || event->size.bytes || event->cache.bytes);
}

static struct ml_kernel_field recorded_field(const struct ml_kernel_source *source, const char *name, ml_u32 bytes)
{
	char event[128];
	int offset;

	if (!name)
		return (struct ml_kernel_field){ 0, 0 };
	snprintf(event, sizeof(event), "%s/%s", source->category, source->event);
	offset = ml_tracefs_field(event, name);
	return offset < 0 ? (struct ml_kernel_field){ 0, 0 } : (struct ml_kernel_field){ (ml_u32)offset, bytes };
}

/* prototype: of the event; without BTF tracefs knows the field. */
static struct ml_kernel_field find_field(const struct btf *btf, const struct btf_type *prototype,
					 const struct ml_kernel_source *source, const char *name, ml_u32 bytes)
{
	return btf ? argument_field(btf, prototype, name) : recorded_field(source, name, bytes);
}

static void find_events(struct ml_kernel_layout *layout, const struct btf *btf)
{
	int cache_size = btf ? ml_libbpf_member(btf, "kmem_cache", "size") : -1;

	layout->cache_size = cache_size < 0 ? 0 : (ml_u32)cache_size;
	for (int i = 0; i < ML_KERNEL_EVENTS; i++) {
		const struct ml_kernel_source *source = &ml_kernel_sources[i];
		const struct btf_type *prototype = btf ? event_prototype(btf, source->event) : NULL;
		struct ml_kernel_event *event = &layout->events[i];

		event->pointer = first_found(find_field(btf, prototype, source, source->pointer[0], 8),
					     find_field(btf, prototype, source, source->pointer[1], 8));
		event->size = first_found(find_field(btf, prototype, source, source->size[0], source->size_bytes),
					  find_field(btf, prototype, source, source->size[1], source->size_bytes));
		layout->has_copies |=
			i == ML_KERNEL_PERCPU_ALLOC && find_field(btf, prototype, source, source->size[0], 8).bytes;
		if (!event->size.bytes && cache_size >= 0)
			event->cache = find_field(btf, prototype, source, source->cache, 8);
		layout->has[i] = is_whole(source, event);
	}
}

static bool has_slab(const struct ml_kernel_layout *layout)
{
	return layout->has[ML_KERNEL_KMALLOC] && layout->has[ML_KERNEL_KFREE] && layout->has[ML_KERNEL_CACHE_ALLOC] &&
	       layout->has[ML_KERNEL_CACHE_FREE];
}

int ml_kernel_layout_find(struct ml_kernel_layout *layout, bool without_btf)
{
	struct btf *btf = without_btf ? NULL : btf__load_vmlinux_btf();

	*layout = (struct ml_kernel_layout){ .is_raw = btf != NULL };
	if (btf) {
		find_events(layout, btf);
		btf__free(btf);
	}
	if (has_slab(layout))
		return 0;
	*layout = (struct ml_kernel_layout){ .is_raw = false };
	find_events(layout, NULL);
	return has_slab(layout) ? 0 : -1;
}
