// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/inject/checks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/process/freezer.h"
#include "agent/process/proc_file.h"
#include "agent/process/process_image.h"

#define KCMP_VM 1 /* <linux/kcmp.h> */
#define STATUS_BYTES 8192

int ml_refuse(struct ml_refusal *refusal, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(refusal->text, sizeof(refusal->text), format, arguments);
	va_end(arguments);
	return -1;
}

static int number(const char *status, const char *name)
{
	return (int)ml_proc_field(status, name, 10);
}

static bool is_android(void)
{
	return !access("/system/bin/linker64", F_OK) || !access("/system/bin/linker", F_OK);
}

/* Checks the ELF class of the program, and that it has a dynamic linker. */
static int check_program(pid_t pid, struct ml_refusal *refusal)
{
	struct ml_elf_segments elf;
	int fd, unreadable;

	fd = ml_proc_open(pid, "exe", O_RDONLY);
	if (fd < 0 && errno == ENOENT)
		return ml_refuse(refusal, "process %d is a kernel thread or is ending (name another one)", pid);
	if (fd < 0 && (errno == EACCES || errno == EPERM))
		return ml_inject_refuse_ptrace(pid, refusal);
	if (fd < 0)
		return ml_refuse(refusal, "could not read process %d: %s (run as its user, or as root)", pid, strerror(errno));
	unreadable = ml_elf_segments_read(&elf, fd, 0);
	close(fd);
	if (unreadable)
		return ml_refuse(refusal, "the program of process %d cannot be read (use --tracer bpf)", pid);
	if (!elf.is_64_bit)
		return ml_refuse(refusal, "process %d is 32-bit, which a 64-bit agent cannot enter (use a 64-bit build of it)",
				 pid);
	if (!elf.has_interpreter)
		return ml_refuse(refusal, "process %d is linked statically: nothing can be loaded into it (use --tracer bpf)",
				 pid);
	return 0;
}

/* Whether two processes share memory: a child of vfork() before its exec, or clone(CLONE_VM). */
static bool shares_memory(pid_t pid, pid_t other)
{
	return other > 0 && !syscall(SYS_kcmp, pid, other, KCMP_VM, 0, 0);
}

struct parent {
	pid_t pid, child;
};

static bool has_child_in_memory(void *context, int tid)
{
	struct parent *parent = context;
	char name[40], text[1u << 16];

	snprintf(name, sizeof(name), "task/%d/children", tid);
	ml_proc_read(parent->pid, name, text, sizeof(text));
	for (char *at = text, *end; (parent->child = (pid_t)strtol(at, &end, 10)); at = end)
		if (shares_memory(parent->pid, parent->child))
			return true;
	return false;
}

pid_t ml_inject_child_in_memory(pid_t pid)
{
	struct parent parent = { .pid = pid };

	return ml_proc_find(pid, "task", has_child_in_memory, &parent) < 0 ? 0 : parent.child;
}

static int check_status(pid_t pid, const char *status, struct ml_refusal *refusal)
{
	const char *line = strstr(status, "State:\t");
	char state = line ? line[strlen("State:\t")] : '\0';
	int tracer = number(status, "TracerPid:\t"), seccomp = number(status, "Seccomp:\t");
	int parent = number(status, "PPid:\t");

	if (number(status, "Tgid:\t") != pid)
		return ml_refuse(refusal, "%d is a thread of process %d (name the process)", pid, number(status, "Tgid:\t"));
	if (state == 'Z' || state == 'X')
		return ml_refuse(refusal, "process %d has ended already (name another one)", pid);
	if (tracer)
		return ml_refuse(refusal, "process %d is traced by process %d, a debugger maybe (end that first)", pid, tracer);
	if (state == 'T')
		return ml_refuse(refusal, "process %d is stopped (let it go on: kill -CONT %d)", pid, pid);
	if (ml_process_is_frozen(pid))
		return ml_refuse(refusal,
				 "process %d is frozen with its control group, as cached apps and paused containers are (bring "
				 "the app to the front, or docker unpause)",
				 pid);
	if (seccomp == 1)
		return ml_refuse(refusal, "process %d is in seccomp's strict mode: the kernel would kill it (use --tracer bpf)",
				 pid);
	if (seccomp && !is_android())
		return ml_refuse(refusal,
				 "process %d has a seccomp filter, which may kill it for the system calls that load a "
				 "library (use --tracer bpf)",
				 pid);
	if (shares_memory(pid, parent))
		return ml_refuse(refusal,
				 "process %d shares the memory of its parent %d: a child of vfork() (name the parent, "
				 "or wait for its exec)",
				 pid, parent);
	return 0;
}

/* Checks as ptrace() does (PTRACE_MODE_ATTACH): a readable /proc does not imply it. */
static int check_memory(pid_t pid, struct ml_refusal *refusal)
{
	int fd = ml_proc_open(pid, "mem", O_RDONLY);

	if (fd < 0 && (errno == EACCES || errno == EPERM))
		return ml_inject_refuse_ptrace(pid, refusal);
	if (fd >= 0)
		close(fd);
	return 0;
}

int ml_inject_check(pid_t pid, struct ml_refusal *refusal)
{
	char status[STATUS_BYTES];

	if (ml_proc_read(pid, "status", status, sizeof(status)) <= 0)
		return ml_refuse(refusal, "there is no process %d (list processes with ps)", pid);
	if (check_status(pid, status, refusal))
		return -1;
	return check_program(pid, refusal) ? -1 : check_memory(pid, refusal);
}

/* The number in a file of the kernel's; 0: unreadable. */
static int setting(const char *path)
{
	char text[8] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (read(fd, text, sizeof(text) - 1) < 0)
			text[0] = '\0';
		close(fd);
	}
	return atoi(text);
}

bool ml_inject_is_traced(pid_t pid)
{
	char status[STATUS_BYTES];

	return ml_proc_read(pid, "status", status, sizeof(status)) > 0 && number(status, "TracerPid:\t");
}

int ml_inject_refuse_ptrace(pid_t pid, struct ml_refusal *refusal)
{
	char status[STATUS_BYTES], path[32];
	int scope = setting("/proc/sys/kernel/yama/ptrace_scope"), tracer;
	struct stat owner;

	if (ml_proc_read(pid, "status", status, sizeof(status)) <= 0)
		return ml_refuse(refusal, "process %d has ended (name another one)", pid);
	tracer = number(status, "TracerPid:\t");
	if (tracer)
		return ml_refuse(refusal, "process %d is traced by process %d, a debugger maybe (end that first)", pid, tracer);
	if (number(status, "Uid:\t") != (int)geteuid() && geteuid())
		return ml_refuse(refusal, "process %d belongs to user %d (run as that user, or as root)", pid,
				 number(status, "Uid:\t"));
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	if (!stat(path, &owner) && owner.st_uid != geteuid() && geteuid())
		return ml_refuse(refusal,
				 "process %d is not dumpable: set-user-ID, or prctl(PR_SET_DUMPABLE) "
				 "(run as root)",
				 pid);
	if (scope && (geteuid() || scope == 3))
		return ml_refuse(refusal, "kernel.yama.ptrace_scope is %d, which forbids attaching to process %d (%s)", scope,
				 pid,
				 scope == 3 ? "it can only be lowered by a reboot; use --tracer bpf" :
					      "sysctl kernel.yama.ptrace_scope=0, or run as root");
	return ml_refuse(refusal, "the kernel does not allow tracing process %d%s (run as root)", pid,
			 setting("/sys/fs/selinux/enforce") == 1 ? ": SELinux, by its domain" :
								   ": ptrace is not permitted here, in a container maybe");
}

bool ml_inject_shares_files(pid_t pid)
{
	struct stat ours, its;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", pid);
	if (stat("/proc/self/ns/mnt", &ours) || stat(path, &its) || ours.st_ino != its.st_ino)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/root", pid);
	return !stat("/", &ours) && !stat(path, &its) && ours.st_ino == its.st_ino && ours.st_dev == its.st_dev;
}
