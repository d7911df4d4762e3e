/* Handlers that return through restorers of the program's own, as Go's and Zig's do: without CFI, and in other bytes. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

void by_rax(void), by_eax(void), by_push(void);
__asm__(".text\n"
	".globl by_rax\n.type by_rax, @function\nby_rax: mov $15, %rax\nsyscall\n.size by_rax, .-by_rax\n"
	".globl by_eax\n.type by_eax, @function\nby_eax: mov $15, %eax\nsyscall\n.size by_eax, .-by_eax\n"
	".globl by_push\n.type by_push, @function\nby_push: push $15\npop %rax\nsyscall\n.size by_push, .-by_push\n");

struct kernel_action {
	void *handler;
	unsigned long flags;
	void *restorer;
	unsigned long mask;
};

void *volatile kept[3];

static void handle(int number)
{
	kept[number % 3] = malloc(1000 + (size_t)number % 3);
	__asm__ volatile("");
}

__attribute__((noinline)) static void interrupted(int number, void (*restorer)(void))
{
	struct kernel_action action = { handle, 0x04000000, restorer, 0 };

	syscall(SYS_rt_sigaction, number, &action, 0, 8);
	syscall(SYS_tkill, syscall(SYS_gettid), number);
	__asm__ volatile("");
}

int main(void)
{
	interrupted(30, by_rax);
	interrupted(31, by_eax);
	interrupted(32 + 3, by_push);
	return 0;
}
