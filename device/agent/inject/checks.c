// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "agent/inject/checks.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KCMP_VM 1 /* <linux/kcmp.h> */
#define STATUS_BYTES 8192
#define SEGMENTS_MAX 64

int ml_refuse(struct ml_refusal *refusal, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(refusal->text, sizeof(refusal->text), format, arguments);
	va_end(arguments);
	return -1;
}

struct status {
	char text[STATUS_BYTES];
};

static int read_status(pid_t pid, struct status *status)
{
	char path[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, status->text, sizeof(status->text) - 1);
	close(fd);
	status->text[n > 0 ? n : 0] = '\0';
	return n > 0 ? 0 : -1;
}

/* A field of /proc/PID/status; "": no such line. */
static const char *field(const struct status *status, const char *name)
{
	const char *line = strstr(status->text, name);

	return line ? line + strlen(name) : "";
}

static int number(const struct status *status, const char *name)
{
	return atoi(field(status, name));
}

static bool is_android(void)
{
	return !access("/system/bin/linker64", F_OK) || !access("/system/bin/linker", F_OK);
}

/* Checks the ELF class of the program, and that it has a dynamic linker. */
static int check_program(pid_t pid, struct ml_refusal *refusal)
{
	char path[32];
	Elf64_Ehdr header;
	Elf64_Phdr segment;
	bool has_linker = false;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return ml_refuse(refusal, "process %d is a kernel thread or is ending (name another one)", pid);
	if (fd < 0 && (errno == EACCES || errno == EPERM))
		return ml_inject_refuse_ptrace(pid, refusal);
	if (fd < 0)
		return ml_refuse(refusal, "could not read process %d: %s (run as its user, or as root)", pid,
				 strerror(errno));
	if (pread(fd, &header, sizeof(header), 0) != sizeof(header) || memcmp(header.e_ident, ELFMAG, SELFMAG)) {
		close(fd);
		return ml_refuse(refusal, "the program of process %d cannot be read (use --tracer bpf)", pid);
	}
	for (int i = 0; i < header.e_phnum && i < SEGMENTS_MAX && header.e_ident[EI_CLASS] == ELFCLASS64; i++)
		if (pread(fd, &segment, sizeof(segment), (off_t)(header.e_phoff + (unsigned)i * sizeof(segment))) ==
		    sizeof(segment))
			has_linker |= segment.p_type == PT_INTERP;
	close(fd);
	if (header.e_ident[EI_CLASS] != ELFCLASS64)
		return ml_refuse(refusal, "process %d is 32-bit, which a 64-bit agent cannot enter (use a 64-bit build of it)",
				 pid);
	if (!has_linker)
		return ml_refuse(refusal, "process %d is linked statically: nothing can be loaded into it (use --tracer bpf)",
				 pid);
	return 0;
}

/* Whether two processes share memory: a child of vfork() before its exec, or clone(CLONE_VM). */
static bool shares_memory(pid_t pid, pid_t other)
{
	return other > 0 && !syscall(SYS_kcmp, pid, other, KCMP_VM, 0, 0);
}

static pid_t child_of_thread(pid_t pid, const char *tid)
{
	char path[64];
	pid_t child = 0;
	FILE *children;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/children", pid, tid);
	children = fopen(path, "re");
	while (children && fscanf(children, "%d", &child) == 1 && !shares_memory(pid, child))
		child = 0;
	if (children)
		fclose(children);
	return child;
}

pid_t ml_inject_child_in_memory(pid_t pid)
{
	struct dirent *entry;
	char path[32];
	pid_t child = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && !child && (entry = readdir(tasks)))
		child = child_of_thread(pid, entry->d_name);
	if (tasks)
		closedir(tasks);
	return child;
}

static int check_status(pid_t pid, const struct status *status, struct ml_refusal *refusal)
{
	char state = field(status, "State:\t")[0];
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
	if (seccomp == 1)
		return ml_refuse(refusal, "process %d is in seccomp's strict mode: the kernel would kill it (use --tracer bpf)",
				 pid);
	if (seccomp && !is_android())
		return ml_refuse(refusal, "process %d has a seccomp filter, which may kill it for the system calls that load a "
					  "library (use --tracer bpf)", pid);
	if (shares_memory(pid, parent))
		return ml_refuse(refusal, "process %d shares the memory of its parent %d: a child of vfork() (name the parent, "
					  "or wait for its exec)", pid, parent);
	return 0;
}

/* Checks as ptrace() does (PTRACE_MODE_ATTACH): a readable /proc does not imply it. */
static int check_memory(pid_t pid, struct ml_refusal *refusal)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && (errno == EACCES || errno == EPERM))
		return ml_inject_refuse_ptrace(pid, refusal);
	if (fd >= 0)
		close(fd);
	return 0;
}

int ml_inject_check(pid_t pid, struct ml_refusal *refusal)
{
	struct status status;

	if (read_status(pid, &status))
		return ml_refuse(refusal, "there is no process %d (list processes with ps)", pid);
	if (check_status(pid, &status, refusal))
		return -1;
	return check_program(pid, refusal) ? -1 : check_memory(pid, refusal);
}

static int yama_scope(void)
{
	char text[8] = "";
	int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (read(fd, text, sizeof(text) - 1) < 0)
			text[0] = '\0';
		close(fd);
	}
	return atoi(text);
}

int ml_inject_refuse_ptrace(pid_t pid, struct ml_refusal *refusal)
{
	struct status status;
	int scope = yama_scope(), tracer;
	char path[32], enforcing = '0';
	struct stat owner;
	int fd;

	if (read_status(pid, &status))
		return ml_refuse(refusal, "process %d has ended (name another one)", pid);
	tracer = number(&status, "TracerPid:\t");
	if (tracer)
		return ml_refuse(refusal, "process %d is traced by process %d, a debugger maybe (end that first)", pid, tracer);
	if (number(&status, "Uid:\t") != (int)geteuid() && geteuid())
		return ml_refuse(refusal, "process %d belongs to user %d (run as that user, or as root)", pid,
				 number(&status, "Uid:\t"));
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	if (!stat(path, &owner) && owner.st_uid != geteuid() && geteuid())
		return ml_refuse(refusal, "process %d is not dumpable: set-user-ID, or prctl(PR_SET_DUMPABLE) "
					  "(run as root)", pid);
	if (scope && (geteuid() || scope == 3))
		return ml_refuse(refusal, "kernel.yama.ptrace_scope is %d, which forbids attaching to process %d (%s)", scope, pid,
				 scope == 3 ? "it can only be lowered by a reboot; use --tracer bpf" :
					      "sysctl kernel.yama.ptrace_scope=0, or run as root");
	fd = open("/sys/fs/selinux/enforce", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (read(fd, &enforcing, 1) != 1)
			enforcing = '0';
		close(fd);
	}
	return ml_refuse(refusal, "the kernel does not allow tracing process %d%s (run as root)", pid,
			 enforcing == '1' ? ": SELinux, by its domain" : ": ptrace is not permitted here, in a container maybe");
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
