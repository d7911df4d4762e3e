// SPDX-License-Identifier: Apache-2.0
/*
 * An allocator whose operator new does not come by malloc, as those of tcmalloc and mimalloc (-DALLOCATOR: the library), a plugin
 * that only its loader knows (-DPLUGIN), and a program that leaks through both: ROUNDS blocks of each size below. With an
 * argument "waits" it first says that it is ready, and begins at the end of its standard input.
 */
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <new>
#include <stdio.h>
#include <string>
#include <unistd.h>

#define ROUNDS 7

#ifdef ALLOCATOR
static char room[64 << 20];
static size_t used;

/* Never given back: the size lies before the block. */
static void *take(size_t size, size_t alignment)
{
	size_t start = (__atomic_load_n(&used, __ATOMIC_RELAXED) + sizeof(size_t) + alignment - 1) & ~(alignment - 1);

	if (size > sizeof(room) - start)
		return nullptr;
	used = start + size;
	memcpy(room + start - sizeof(size_t), &size, sizeof(size));
	return room + start;
}

extern "C" void *malloc(size_t size)
{
	return take(size, 16);
}

static size_t n_given_back;

extern "C" void free(void *block)
{
	if (block)
		__atomic_fetch_add(&n_given_back, 1, __ATOMIC_RELAXED);
}

extern "C" void *calloc(size_t n, size_t size)
{
	return take(n * size, 16); /* `room` is zero */
}

extern "C" void *realloc(void *old, size_t size)
{
	void *block = take(size, 16);
	size_t old_size = old ? reinterpret_cast<size_t *>(old)[-1] : 0;

	if (block && old)
		memcpy(block, old, old_size < size ? old_size : size);
	return block;
}

static void *take_or_throw(size_t size, size_t alignment)
{
	void *block = take(size, alignment);

	if (!block)
		throw std::bad_alloc();
	return block;
}

extern "C" void *mallocx(size_t size, int)
{
	return take(size, 16);
}

extern "C" void *rallocx(void *old, size_t size, int)
{
	return realloc(old, size);
}

extern "C" void dallocx(void *, int)
{
}

extern "C" void sdallocx(void *, size_t, int)
{
}

void *operator new(size_t size)
{
	return take_or_throw(size, 16);
}

void *operator new[](size_t size)
{
	return take_or_throw(size, 16);
}

void *operator new(size_t size, std::align_val_t alignment)
{
	return take_or_throw(size, static_cast<size_t>(alignment));
}

void *operator new(size_t size, const std::nothrow_t &) noexcept
{
	return take(size, 16);
}

void operator delete(void *) noexcept
{
}

void operator delete(void *, size_t) noexcept
{
}

void operator delete[](void *) noexcept
{
}

void operator delete(void *, size_t, std::align_val_t) noexcept
{
}

#elif defined(PLUGIN)

extern "C" void *leak_in_plugin()
{
	return new char[509];
}

#else

/* jemalloc's own interface; other allocators lack it. Rust's jemallocator frees by sdallocx what it has from malloc. */
extern "C" {
void *mallocx(size_t size, int flags) __attribute__((weak));
void *rallocx(void *old, size_t size, int flags) __attribute__((weak));
void dallocx(void *block, int flags) __attribute__((weak));
void sdallocx(void *block, size_t size, int flags) __attribute__((weak));
}

struct alignas(256) Large {
	char bytes[512];
};

static void *volatile kept;
alignas(std::string) static char texts[ROUNDS][sizeof(std::string)];

static void leak_by_jemalloc_s_interface()
{
	bool has_it = mallocx && rallocx && dallocx && sdallocx;

	kept = has_it ? mallocx(701, 0) : malloc(701);
	kept = has_it ? rallocx(malloc(70001), 809, 0) : malloc(809);
	if (!has_it)
		return;
	sdallocx(malloc(80001), 80001, 0);
	dallocx(mallocx(90001, 0), 0);
}

static void leak(void *(*leak_in_plugin)())
{
	for (int i = 0; i < ROUNDS; i++) {
		kept = operator new(101);
		kept = new char[211];
		kept = new Large;
		kept = new (std::nothrow) char[307];
		kept = malloc(401);
		kept = leak_in_plugin();
		kept = operator new(99991);
		operator delete(kept);
		(new (texts[i]) std::string)->append(600, 'x'); /* libstdc++ takes 601 bytes, and gives back what it outgrows */
		std::string().append(60000, 'x');
		leak_by_jemalloc_s_interface();
		kept = new Large;
		delete static_cast<Large *>(kept);
		try {
			kept = operator new(size_t{ 1 } << 40);
		} catch (const std::bad_alloc &) {
		}
	}
}

int main(int argc, char **argv)
{
	char byte;
	void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	void *found = plugin ? dlsym(plugin, "leak_in_plugin") : nullptr;

	if (!found)
		return 1;
	if (argc > 2) {
		if (write(1, "ready\n", 6) != 6)
			return 1;
		while (read(0, &byte, 1) > 0)
			;
	}
	leak(reinterpret_cast<void *(*)()>(found));
	return 0;
}
#endif
