// SPDX-License-Identifier: Apache-2.0
/*
 * A program for any libc that brings in the shim itself, without a header: attach SHIM LINE [LIBRARY]. Prints what came of it.
 */
typedef __SIZE_TYPE__ size_t;

void *malloc(size_t size);
void *calloc(size_t n, size_t size);
void *realloc(void *old, size_t size);
void free(void *pointer);
char *strdup(const char *text);
int dprintf(int fd, const char *format, ...);

/* Of a library that libc needs: not there when this is linked. */
#define WEAK __attribute__((weak))
WEAK void *dlopen(const char *path, int flags);
WEAK void *dlsym(void *handle, const char *name);
WEAK char *dlerror(void);

#define RTLD_NOW 2
#define HELD 64

static void *volatile kept[HELD];

static __attribute__((noinline)) void hold(int from, int n, size_t size)
{
	for (int i = 0; i < n; i++)
		kept[from + i] = malloc(size);
}

static int run(const char *path, const char *line, const char *library)
{
	int (*attach)(const char *), (*detach)(void), result;
	void *shim = dlopen(path, RTLD_NOW), *loaded;
	void (*leak_here)(size_t);

	attach = shim ? (int (*)(const char *))dlsym(shim, "memleak_attach") : 0;
	detach = shim ? (int (*)(void))dlsym(shim, "memleak_detach") : 0;
	if (!attach || !detach) {
		dprintf(2, "%s\n", dlerror());
		return 1;
	}
	hold(0, 5, 101);
	result = attach(line);
	dprintf(1, "attach %d\n", result);
	hold(5, 7, 103);
	kept[20] = calloc(7, 19);
	kept[21] = realloc(malloc(13), 70001);
	kept[22] = strdup("of libc's own, where libc calls itself through slots");
	for (int i = 0; i < 6; i++)
		free(kept[i]);
	loaded = library ? dlopen(library, RTLD_NOW) : 0;
	leak_here = loaded ? (void (*)(size_t))dlsym(loaded, "leak_here") : 0;
	if (leak_here)
		leak_here(107);
	dprintf(1, "library %d\n", leak_here != 0);
	dprintf(1, "detach %d\n", detach());
	hold(30, 3, 109);
	return 0;
}

int main(int argc, char **argv)
{
	return run(argv[1], argv[2], argc > 3 ? argv[3] : (const char *)0);
}

#ifdef BIONIC
/* As in the NDK's crtbegin: hands the raw stack to libc, which finds argc, the environment and the auxiliary vector there. */
typedef void (*function)(void);
struct structors {
	function *preinit, *init, *fini;
};
void __libc_init(void *raw, function exit, int (*main)(int, char **), const struct structors *structors);

__attribute__((used)) static void begin(void *raw)
{
	static function none[] = { (function)-1, 0 };
	static const struct structors structors = { none, none, none };

	__libc_init(raw, 0, main, &structors);
}

#if defined(__aarch64__)
__asm__(".text\n.globl _start\n.type _start, %function\n_start:\n.cfi_startproc\n.cfi_undefined x30\n"
	"mov x29, #0\nmov x30, #0\nmov x0, sp\nbl begin\nbrk #1\n.cfi_endproc\n.size _start, .-_start\n");
#else
__asm__(".text\n.arm\n.globl _start\n.type _start, %function\n_start:\n.fnstart\n.cantunwind\n"
	"mov r11, #0\nmov lr, #0\nmov r0, sp\nbl begin\nudf #0\n.fnend\n.size _start, .-_start\n");
#endif
#endif
