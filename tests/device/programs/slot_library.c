/* A library that leaks from its constructor and from its code. */
void *malloc(__SIZE_TYPE__ size);

static void *volatile kept[1000];
static int n_kept;

__attribute__((constructor)) static void begin(void)
{
	kept[n_kept++] = malloc(4001);
}

__attribute__((visibility("default"))) void leak_here(__SIZE_TYPE__ size);
void leak_here(__SIZE_TYPE__ size)
{
	kept[n_kept++] = malloc(size);
}
