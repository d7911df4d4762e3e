/* Blocks of an allocator called by its own names: -DTCMALLOC, -DMIMALLOC or -DJEMALLOC. */
#include <stddef.h>

#ifdef TCMALLOC
#define NAME(function) tc_##function
void *tc_new(size_t bytes);
void *tc_newarray_aligned(size_t bytes, size_t alignment);
void tc_delete_sized(void *block, size_t bytes);
void tc_deletearray_aligned(void *block, size_t alignment);
#elif defined(JEMALLOC)
#define NAME(function) je_##function
void *je_mallocx(size_t bytes, int flags);
#else
#define NAME(function) mi_##function
void *mi_malloc_small(size_t bytes);
void *mi_new_n(size_t count, size_t bytes);
void *mi_recalloc(void *old, size_t count, size_t bytes);
void *mi_zalloc_aligned(size_t bytes, size_t alignment);
void mi_free_size(void *block, size_t bytes);
#endif
void *NAME(malloc)(size_t bytes);
void *NAME(calloc)(size_t count, size_t bytes);
void *NAME(realloc)(void *old, size_t bytes);
void *NAME(memalign)(size_t alignment, size_t bytes);
int NAME(posix_memalign)(void **out, size_t alignment, size_t bytes);
void NAME(free)(void *block);

int main(void)
{
	void *block, *other;

	for (int i = 0; i < 100; i++)
		NAME(malloc)(1009);
	for (int i = 0; i < 1000; i++)
		NAME(free)(NAME(malloc)(64));
	NAME(calloc)(10, 30);
	block = NAME(realloc)(NAME(malloc)(10), 5000);
	NAME(realloc)(block, 700);
	if (NAME(posix_memalign)(&block, 64, 333))
		return 1;
	other = NAME(memalign)(64, 444);
#ifdef TCMALLOC
	tc_new(555);
	tc_delete_sized(tc_new(556), 556);
	tc_newarray_aligned(666, 128);
	tc_deletearray_aligned(tc_newarray_aligned(667, 128), 128);
#elif defined(JEMALLOC)
	je_mallocx(222, 0);
#else
	mi_malloc_small(55);
	mi_new_n(5, 111);
	mi_recalloc(mi_malloc(20), 6, 111);
	mi_zalloc_aligned(777, 128);
	mi_free_size(mi_malloc(888), 888);
#endif
	return !other;
}
