// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The kernel's allocators. The agent attaches each program to a raw tracepoint, if the kernel's BTF has the order of
 * its arguments, or else to a tracepoint, whose layout is in tracefs.
 */
#include "bpf/kernel/recorder.bpf.h"

static __always_inline ml_u64 ml_pointer(const void *context, ml_u32 event)
{
	return ml_field(context, &options.events[event].pointer);
}

static __always_inline ml_u64 ml_size(const void *context, ml_u32 event)
{
	ml_u64 cache;
	ml_u32 size = 0;

	if (!options.events[event].cache.bytes)
		return ml_field(context, &options.events[event].size);
	cache = ml_field(context, &options.events[event].cache);
	bpf_probe_read_kernel(&size, sizeof(size), (const void *)(cache + options.cache_size));
	return size;
}

#define ML_KERNEL_ALLOCATION(name, event, function, family, size)                                 \
	SEC("raw_tracepoint") int name(void *context)                                             \
	{                                                                                         \
		return ml_allocated(context, function, family, ml_pointer(context, event), size); \
	}

#define ML_KERNEL_RELEASE(name, event, family)                       \
	SEC("raw_tracepoint") int name(void *context)                \
	{                                                            \
		return ml_freed(family, ml_pointer(context, event)); \
	}

ML_KERNEL_ALLOCATION(kmalloc, ML_KERNEL_KMALLOC, ML_FN_KMALLOC, ML_KERNEL_SLAB, ml_size(context, ML_KERNEL_KMALLOC))
ML_KERNEL_ALLOCATION(kmalloc_node, ML_KERNEL_KMALLOC_NODE, ML_FN_KMALLOC, ML_KERNEL_SLAB,
		     ml_size(context, ML_KERNEL_KMALLOC_NODE))
ML_KERNEL_RELEASE(kfree, ML_KERNEL_KFREE, ML_KERNEL_SLAB)
ML_KERNEL_ALLOCATION(kmem_cache_alloc, ML_KERNEL_CACHE_ALLOC, ML_FN_KMEM_CACHE_ALLOC, ML_KERNEL_SLAB,
		     ml_size(context, ML_KERNEL_CACHE_ALLOC))
ML_KERNEL_ALLOCATION(kmem_cache_alloc_node, ML_KERNEL_CACHE_ALLOC_NODE, ML_FN_KMEM_CACHE_ALLOC, ML_KERNEL_SLAB,
		     ml_size(context, ML_KERNEL_CACHE_ALLOC_NODE))
ML_KERNEL_RELEASE(kmem_cache_free, ML_KERNEL_CACHE_FREE, ML_KERNEL_SLAB)

/* Blocks freed in bulk have no event of their own, nor have those that wait for a grace period in a sheaf. */
#define ML_BULK_MAX 512

SEC("kprobe") int slab_free_bulk(struct ml_regs *regs)
{
	ml_u64 count = ML_ARG2(regs), blocks = ML_ARG3(regs);

	for (ml_u32 i = 0; i < ML_BULK_MAX && i < count; i++) {
		ml_u64 address = 0;

		bpf_probe_read_kernel(&address, sizeof(address), (const void *)(blocks + 8 * i));
		ml_freed(ML_KERNEL_SLAB, address);
	}
	return 0;
}

ML_PROBE("kprobe", slab_free_later, ml_freed(ML_KERNEL_SLAB, ML_ARG2(regs)))

/* If no page was available, the argument is 0 and the pfn in a tracepoint's record all ones. */
static __always_inline ml_u64 ml_page(const void *context, ml_u32 event)
{
	ml_u64 page = ml_pointer(context, event);

	return page == ~0ull ? 0 : page;
}

SEC("raw_tracepoint") int mm_page_alloc(void *context)
{
	ml_u64 order = ml_field(context, &options.events[ML_KERNEL_PAGE_ALLOC].size);

	return ml_allocated(context, ML_FN_MM_PAGE_ALLOC, ML_KERNEL_PAGES, ml_page(context, ML_KERNEL_PAGE_ALLOC),
			    (ml_u64)options.page_bytes << (order & 31));
}

ML_KERNEL_RELEASE(mm_page_free, ML_KERNEL_PAGE_FREE, ML_KERNEL_PAGES)
ML_KERNEL_ALLOCATION(percpu_alloc_percpu, ML_KERNEL_PERCPU_ALLOC, ML_FN_PERCPU_ALLOC, ML_KERNEL_PERCPU,
		     ml_size(context, ML_KERNEL_PERCPU_ALLOC) * options.percpu_copies)
ML_KERNEL_RELEASE(percpu_free_percpu, ML_KERNEL_PERCPU_FREE, ML_KERNEL_PERCPU)

ML_TRACEPOINT("tracepoint/task/task_newtask", process_fork, ml_follow_fork(event))

char LICENSE[] SEC("license") = "Dual BSD/GPL";
