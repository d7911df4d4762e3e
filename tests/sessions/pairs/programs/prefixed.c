/* jemalloc, linked in with the prefix je_, beside all that pool.c keeps (whose main is pool_main here). */
#include <stddef.h>

void *je_malloc(size_t bytes);
void *je_calloc(size_t count, size_t bytes);
void *je_realloc(void *old, size_t bytes);
void *je_mallocx(size_t bytes, int flags);
int je_posix_memalign(void **out, size_t alignment, size_t bytes);
void je_free(void *block);

int pool_main(int n_arguments, char **arguments);

__attribute__((noinline)) static void keep(void)
{
	void *block;

	for (int i = 0; i < 100; i++)
		je_malloc(1009);
	for (int i = 0; i < 1000; i++)
		je_free(je_malloc(64));
	je_calloc(10, 30);
	block = je_realloc(je_malloc(10), 5000);
	je_realloc(block, 700);
	if (!je_posix_memalign(&block, 64, 333))
		je_mallocx(222, 0);
}

int main(int n_arguments, char **arguments)
{
	keep();
	return pool_main(n_arguments, arguments);
}
