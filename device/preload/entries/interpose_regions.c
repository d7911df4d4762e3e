// SPDX-License-Identifier: Apache-2.0
/*
 * The mmap family, with System V's shared memory and the break. Without a region ledger each call is only forwarded.
 * glibc and musl bind their own calls locally, so thread stacks and malloc's own memory do not pass here.
 *
 * Only where off_t fits a register: on 32-bit systems mmap and mmap64 pass it differently.
 */
#if __SIZEOF_LONG__ == 8

#include <errno.h>
#include <sys/mman.h>

#include "preload/entries/originals.h"
#include "preload/freestanding/clock.h"
#include "preload/recorder/regions.h"
#include "preload/freestanding/syscalls.h"

#define HANDLER __attribute__((visibility("hidden"), used))
#define EXPORT __attribute__((visibility("default")))

#undef MAP_FAILED /* ours is a number */
#define MAP_FAILED (~0ul)
#ifndef MREMAP_DONTUNMAP /* Linux 5.7 */
#define MREMAP_DONTUNMAP 4
#endif

ML_ENTRY6(mmap, ml_handle_mmap);
ML_ENTRY6(mmap64, ml_handle_mmap64);
ML_ENTRY6(mremap, ml_handle_mremap);
ML_ENTRY(shmat, ml_handle_shmat);
ML_ENTRY(sbrk, ml_handle_sbrk);
ML_ENTRY(brk, ml_handle_brk);

static unsigned long map(enum ml_function function, void *address, size_t size, int protection, int flags, int fd, long offset,
			 const struct ml_registers *registers)
{
	void *(*original)(void *, size_t, int, int, int, long);
	struct ml_region_call call = { .function = function, .size = size, .registers = registers };
	int is_taken = ml_originals_ready() && ml_regions_take(registers->return_address);

	original = function == ML_FN_MMAP64 && ml_original.mmap64 ? ml_original.mmap64 : ml_original.mmap;
	if (original)
		call.address = (unsigned long)original(address, size, protection, flags, fd, offset);
	else
		call.address = (unsigned long)ml_from_kernel(ML_SYSCALL6(mmap, address, size, protection, flags, fd, offset));
	if (is_taken && call.address != MAP_FAILED)
		ml_regions_mapped(&call);
	return call.address;
}

#define MAP(name, function)                                                                                                \
	HANDLER unsigned long ml_handle_##name(void *address, size_t size, int protection, int flags, int fd, long offset, \
					       const struct ml_registers *registers)                                       \
	{                                                                                                                  \
		return map(function, address, size, protection, flags, fd, offset, registers);                             \
	}

MAP(mmap, ML_FN_MMAP)
MAP(mmap64, ML_FN_MMAP64)

/* `new` is undefined if the caller passed no fifth argument; the original decides by the flags. */
HANDLER unsigned long ml_handle_mremap(void *old, size_t old_size, size_t size, int flags, void *new, long unused,
				       const struct ml_registers *registers)
{
	struct ml_region_call call = {
		.function = ML_FN_MREMAP,
		.size = size,
		.old_address = (unsigned long)old,
		.registers = registers,
	};
	int is_taken = ml_originals_ready() && ml_regions_take(registers->return_address);
	ml_u64 before_ns = is_taken ? ml_clock_exact_ns() : 0;

	(void)unused;
	if (ml_original.mremap)
		call.address = (unsigned long)ml_original.mremap(old, old_size, size, flags, new);
	else
		call.address = (unsigned long)ml_from_kernel(ML_SYSCALL6(mremap, old, old_size, size, flags, new, 0));
	if (!is_taken || call.address == MAP_FAILED)
		return call.address;
	/* An old size of 0 maps shared memory a second time. */
	if (old_size && !(flags & MREMAP_DONTUNMAP))
		ml_regions_unmapped((unsigned long)old, old_size, before_ns);
	ml_regions_mapped(&call);
	return call.address;
}

EXPORT int munmap(void *address, size_t size)
{
	int is_taken = ml_originals_ready() && ml_regions_take((ml_u64)(unsigned long)__builtin_return_address(0));
	ml_u64 before_ns = is_taken ? ml_clock_exact_ns() : 0;
	int result = ml_original.munmap ? ml_original.munmap(address, size) :
					  (int)ml_from_kernel(ML_SYSCALL2(munmap, address, size));

	if (is_taken && !result)
		ml_regions_unmapped((unsigned long)address, size, before_ns);
	return result;
}

/* The agent finds the size in /proc/PID/maps. */
HANDLER unsigned long ml_handle_shmat(int id, const void *address, int flags, const struct ml_registers *registers)
{
	struct ml_region_call call = { .function = ML_FN_SHMAT, .registers = registers };
	int is_taken = ml_originals_ready() && ml_regions_take(registers->return_address);

	call.address = (unsigned long)(ml_original.shmat ? (long)ml_original.shmat(id, address, flags) : ml_fail(ENOSYS));
	if (is_taken && call.address != MAP_FAILED)
		ml_regions_mapped(&call);
	return call.address;
}

EXPORT int shmdt(const void *address)
{
	int is_taken = ml_originals_ready() && ml_regions_take((ml_u64)(unsigned long)__builtin_return_address(0));
	ml_u64 before_ns = is_taken ? ml_clock_exact_ns() : 0;
	int result = ml_original.shmdt ? ml_original.shmdt(address) : ml_fail(ENOSYS);

	if (is_taken && !result)
		ml_regions_unmapped((unsigned long)address, 0, before_ns);
	return result;
}

static void move_break(unsigned long old, unsigned long new, ml_u64 before_ns, const struct ml_registers *registers)
{
	if (new < old)
		ml_regions_unmapped(new, old - new, before_ns);
	if (new > old)
		ml_regions_mapped(&(struct ml_region_call){
			.function = ML_FN_SBRK, .address = old, .size = new - old, .registers = registers });
}

/* Without the libc's own there is none: it keeps the break in a variable. */
HANDLER unsigned long ml_handle_sbrk(long bytes, long unused, long unused_too, const struct ml_registers *registers)
{
	int is_taken = ml_originals_ready() && bytes && ml_regions_take(registers->return_address);
	ml_u64 before_ns = is_taken ? ml_clock_exact_ns() : 0;
	unsigned long old = ml_original.sbrk ? (unsigned long)ml_original.sbrk(bytes) : (unsigned long)ml_fail(ENOMEM);

	(void)unused, (void)unused_too;
	if (is_taken && old != MAP_FAILED)
		move_break(old, old + (unsigned long)bytes, before_ns, registers);
	return old;
}

HANDLER int ml_handle_brk(void *new, long unused, long unused_too, const struct ml_registers *registers)
{
	int is_taken = ml_originals_ready() && ml_original.sbrk && ml_regions_take(registers->return_address);
	ml_u64 before_ns = is_taken ? ml_clock_exact_ns() : 0;
	unsigned long old = is_taken ? (unsigned long)ml_original.sbrk(0) : 0;
	int result = ml_original.brk ? ml_original.brk(new) : ml_fail(ENOMEM);

	(void)unused, (void)unused_too;
	if (is_taken && !result)
		move_break(old, (unsigned long)new, before_ns, registers);
	return result;
}

#endif
