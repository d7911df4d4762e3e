/* A library that leaks from its constructor and from its code. With RELOCATION_NS, the loader needs so long to relocate it. */
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

#ifdef RELOCATION_NS
static void chosen_one(void)
{
}

/* By itself: no other function can be called yet. */
static void (*choose(void))(void)
{
	long time[2] = { 0, RELOCATION_NS }, result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(35 /* nanosleep */), "D"(time), "S"(0) : "rcx", "r11", "memory");
	return chosen_one;
}

__attribute__((visibility("default"), ifunc("choose"))) void chosen(void);
void *address_of_chosen = (void *)chosen;

/* Several pages between the slots and the end of what is read-only after relocation. */
__attribute__((section(".data.rel.ro"))) void *volatile const rest[2048] = { &address_of_chosen };
#endif
