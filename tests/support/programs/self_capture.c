/* A program that captures itself: its registers, mappings and stacks as a snapshot folder (argv[1]), and beside
 * them truth.txt, the functions that it is in, innermost first, by a list that each keeps itself.
 * FAULT: captured in a handler on a stack of its own, of a store to address 0. NULL_CALL: of a call to address 0. */
#include "libc.h"

#define SEPARATE __attribute__((noinline, noclone))
#define ENTER const char *const *const below = top; const char *const entry[] = { __func__, (const char *)below }; \
        top = entry; asm volatile("" : : : "memory") /* a fault sees it, too */
#define LEAVE top = below

typedef uintptr_t word;
static const char *const *volatile top;
static volatile int zero;

static FILE *file(const char *name)
{
        FILE *f = fopen(name, "wb");
        return f ? f : (abort(), f);
}

static void write_memory(int number, word start, word end)
{
        char name[32];
        uint64_t address = start;
        snprintf(name, sizeof(name), "stack%d.data", number);
        FILE *f = file(name);
        fwrite(&address, 8, 1, f);
        fwrite((void *)start, 1, end - start, f);
        fclose(f);
}

/* The stacks and the vdso are written out; all else is in files. */
static void write_maps(word sp)
{
        char line[512];
        int number = 0;
        FILE *in = fopen("/proc/self/maps", "r"), *out = file("maps.txt");
        while (fgets(line, sizeof(line), in)) {
                word start = strtoul(line, NULL, 16), end = strtoul(strchr(line, '-') + 1, NULL, 16);
                fputs(line, out);
                if (start <= sp && sp < end)
                        write_memory(number++, sp, end);
                else if (strstr(line, "[stack]") || strstr(line, "[vdso]"))
                        write_memory(number++, start, end);
        }
        fclose(out);
}

SEPARATE static void write_folder(const char *const *names, const word *values, int n)
{
        FILE *f = file("regs.txt");
        for (int i = 0; i < n; i++)
                fprintf(f, "%s: %lx\n", names[i], (long)values[i]);
        fclose(f);
        f = file("truth.txt");
        for (const char *const *at = top; at; at = (const char *const *)at[1])
                fprintf(f, "%s\n", at[0]);
        fclose(f);
        write_maps(values[n - 2]);
        if (!zero)
                _exit(0);
}

/* Registers that a function keeps, sp, pc. */
SEPARATE static void capture(void)
{
        ENTER;
#if defined(__x86_64__)
        static const char *const names[] = { "rbx", "rbp", "r12", "r13", "r14", "r15", "rsp", "rip" };
        word r[8];
        asm volatile("movq %%rbx,(%0); movq %%rbp,8(%0); movq %%r12,16(%0); movq %%r13,24(%0); movq %%r14,32(%0);"
                     "movq %%r15,40(%0); movq %%rsp,48(%0); leaq 0(%%rip),%%rcx; movq %%rcx,56(%0)"
                     : : "a"(r) : "rcx", "memory");
#elif defined(__aarch64__)
        static const char *const names[] = { "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26",
                                             "x27", "x28", "x29", "lr",  "sp",  "pc" };
        word r[14];
        register word *at asm("x9") = r;
        asm volatile("stp x19,x20,[x9]; stp x21,x22,[x9,#16]; stp x23,x24,[x9,#32]; stp x25,x26,[x9,#48];"
                     "stp x27,x28,[x9,#64]; stp x29,x30,[x9,#80]; mov x10,sp; adr x11,.; stp x10,x11,[x9,#96]"
                     : : "r"(at) : "x10", "x11", "memory");
#else
        static const char *const names[] = { "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "lr", "sp", "pc" };
        word r[11];
        register word *at asm("r3") = r;
        asm volatile("str r4,[r3]; str r5,[r3,#4]; str r6,[r3,#8]; str r7,[r3,#12]; str r8,[r3,#16]; str r9,[r3,#20];"
                     "str r10,[r3,#24]; str r11,[r3,#28]; str lr,[r3,#32]; mov r12,sp; str r12,[r3,#36]; mov r12,pc;"
                     "str r12,[r3,#40]" : : "r"(at) : "r12", "memory");
#endif
        write_folder(names, r, sizeof(r) / sizeof(*r));
        LEAVE;
}

static void handler(int number, siginfo_t *info, void *context)
{
        ENTER;
        zero += number;
        zero -= number;
        capture();
        LEAVE;
}

SEPARATE static int leaf(int x)
{
        ENTER;
#if defined(FAULT)
        *(volatile int *)(word)zero = x;
#elif defined(NULL_CALL)
        ((void (*)(void))(word)zero)();
#else
        capture();
#endif
        LEAVE;
        return x + zero;
}

static int compare(const void *a, const void *b)
{
        ENTER;
        int found = leaf(*(const int *)a) - *(const int *)b;
        LEAVE;
        return found + zero;
}

SEPARATE static int by_alloca(int x)
{
        ENTER;
        char *bytes = alloca(16 * x + 100);
        int values[3] = { x, 2, 1 };
        memset(bytes, x, 16 * x);
        qsort(values, 3, sizeof(*values), compare);
        LEAVE;
        return bytes[3] + values[0];
}

SEPARATE static int large(int x)
{
        ENTER;
        volatile char bytes[9000];
        bytes[x] = 1;
        int found = by_alloca(x + bytes[x]);
        LEAVE;
        return found + bytes[x];
}

SEPARATE static int recursive(int n)
{
        ENTER;
        int found = n ? recursive(n - 1) : large(1);
        LEAVE;
        return 3 * found + n + zero;
}

int main(int argc, char **argv)
{
        ENTER;
        stack_t other = { .ss_sp = mmap(0, 65536, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .ss_size = 65536 };
        struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK };
        if (argc != 2 || chdir(argv[1]) || sigaltstack(&other, NULL))
                return 1;
        sigaction(SIGSEGV, &action, NULL);
        int found = recursive(3);
        LEAVE;
        return found;
}
