// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/checks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/process/proc_file.h"
#include "agent/process/process_image.h"
#include "agent/process/target_objects.h"

#define TEXT_BYTES (64u << 10)

/* One version of control groups: proc(5), "/proc/PID/cgroup"; kernel, admin-guide/cgroup-v2.rst and cgroup-v1/freezer-subsystem.rst. */
struct version {
	const char *line;  /* of /proc/PID/cgroup, up to the path */
	const char *mount; /* of /proc/self/mountinfo, behind the mount's folder */
	const char *option;
	const char *file, *frozen;
};

static const struct version versions[] = {
	{ "0::", " - cgroup2 ", "", "cgroup.events", "frozen 1" },
	{ ":freezer:", " - cgroup ", "freezer", "freezer.state", "F" }, /* FREEZING, FROZEN */
};

/* Cuts the text behind its line. Returns the next one, or NULL. */
static char *cut_line(char *text)
{
	char *end = strchr(text, '\n');

	if (!end)
		return NULL;
	*end = '\0';
	return end + 1;
}

/* Finds where the hierarchy is mounted. mounts: of /proc/self/mountinfo, which it cuts. */
static bool find_mount(const struct version *version, char *mounts, char folder[PATH_MAX])
{
	for (char *line = mounts, *next; line && *line; line = next) {
		const char *kind;

		next = cut_line(line);
		kind = strstr(line, version->mount);
		if (kind && strstr(kind, version->option) && sscanf(line, "%*d %*d %*s %*s %4095s", folder) == 1)
			return true;
	}
	return false;
}

/* The process's path in the hierarchy. groups: of /proc/PID/cgroup, which it cuts; NULL: none. */
static const char *find_path(const struct version *version, char *groups)
{
	for (char *line = groups, *next; line && *line; line = next) {
		char *found;

		next = cut_line(line);
		found = strstr(line, version->line);
		if (found)
			return found + strlen(version->line);
	}
	return NULL;
}

/* The beginning of a file of the kernel's, as a text: empty if it is unreadable. */
static void read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);

	text[n < 0 ? 0 : n] = '\0';
	if (fd >= 0)
		close(fd);
}

static bool is_frozen_by(const struct version *version, pid_t pid)
{
	char groups[4096], mounts[TEXT_BYTES], folder[PATH_MAX], file[2 * PATH_MAX], state[256];
	const char *path;

	if (ml_proc_read(pid, "cgroup", groups, sizeof(groups)) <= 0 || !(path = find_path(version, groups)) ||
	    ml_proc_read(getpid(), "mountinfo", mounts, sizeof(mounts)) <= 0 || !find_mount(version, mounts, folder))
		return false;
	snprintf(file, sizeof(file), "%s%s/%s", folder, path, version->file);
	read_file(file, state, sizeof(state));
	return strstr(state, version->frozen) != NULL;
}

/*
 * Whether the process's control group is frozen, in either version of control groups: cached apps of Android, paused containers. Its
 * threads then run nothing, a borrowed call neither, until the thaw. False where the groups cannot be read.
 */
static bool is_frozen(pid_t pid)
{
	return is_frozen_by(&versions[0], pid) || is_frozen_by(&versions[1], pid);
}

#define KCMP_VM 1 /* <linux/kcmp.h> */
#define STATUS_BYTES 8192
#define DESCRIPTORS_NEEDED 2 /* the library and its memory file, then a socket and the segment */

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

/* The number in a file of the kernel's; 0: unreadable. */
static int setting(const char *path)
{
	char text[8];

	read_file(path, text, sizeof(text));
	return atoi(text);
}

/* The reason of an EPERM of ptrace(2), as far as the machine and the process reveal it. */
static int refuse_ptrace(pid_t pid, struct ml_refusal *refusal)
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

/* Checks the ELF class of the program. */
static int check_program(pid_t pid, bool *has_interpreter, struct ml_refusal *refusal)
{
	struct ml_elf_segments elf;
	int fd, unreadable;

	fd = ml_proc_open(pid, "exe", O_RDONLY);
	if (fd < 0 && errno == ENOENT)
		return ml_refuse(refusal, "process %d is a kernel thread or is ending (name another one)", pid);
	if (fd < 0 && (errno == EACCES || errno == EPERM))
		return refuse_ptrace(pid, refusal);
	if (fd < 0)
		return ml_refuse(refusal, "could not read process %d: %s (run as its user, or as root)", pid, strerror(errno));
	unreadable = ml_elf_segments_read(&elf, fd, 0);
	close(fd);
	if (unreadable)
		return ml_refuse(refusal, "the program of process %d cannot be read (use --tracer bpf)", pid);
	if (!elf.is_64_bit)
		return ml_refuse(refusal, "process %d is 32-bit, which a 64-bit agent cannot enter (use a 64-bit build of it)",
				 pid);
	*has_interpreter = elf.has_interpreter;
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
	if (is_frozen(pid))
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
		return refuse_ptrace(pid, refusal);
	if (fd >= 0)
		close(fd);
	return 0;
}

/* Whether a dynamic linker has loaded the program: one that the linker was asked to run, if the kernel did not start it for the program. */
static bool has_objects(pid_t pid)
{
	struct ml_target_objects objects;
	bool has = ml_target_objects_read(&objects, (ml_u32)pid) || objects.n;

	ml_target_objects_free(&objects);
	return has;
}

int ml_inject_check(pid_t pid, struct ml_refusal *refusal)
{
	char status[STATUS_BYTES];
	bool has_interpreter;

	if (ml_proc_read(pid, "status", status, sizeof(status)) <= 0)
		return ml_refuse(refusal, "there is no process %d (list processes with ps)", pid);
	if (check_status(pid, status, refusal))
		return -1;
	if (check_program(pid, &has_interpreter, refusal) || check_memory(pid, refusal))
		return -1;
	if (!has_interpreter && !has_objects(pid))
		return ml_refuse(refusal, "process %d is linked statically: nothing can be loaded into it (use --tracer bpf)",
				 pid);
	return 0;
}

struct descriptors {
	rlim_t limit, n_below; /* the limit, which may have been lowered since others were opened */
};

static bool count_if_below(void *context, int number)
{
	struct descriptors *open = context;

	open->n_below += (rlim_t)number < open->limit;
	return false;
}

int ml_inject_check_descriptors(pid_t pid, struct ml_refusal *refusal)
{
	struct descriptors open = { 0 };
	struct rlimit limit;

	if (prlimit(pid, RLIMIT_NOFILE, NULL, &limit))
		return 0;
	open.limit = limit.rlim_cur;
	ml_proc_find(pid, "fd", count_if_below, &open);
	if (open.n_below + DESCRIPTORS_NEEDED <= open.limit)
		return 0;
	return ml_refuse(refusal,
			 "process %d has %llu of at most %llu files open, and attaching takes %d more for a moment (raise its "
			 "limit: prlimit --pid %d --nofile=%llu, or use --tracer bpf)",
			 pid, (unsigned long long)open.n_below, (unsigned long long)open.limit, DESCRIPTORS_NEEDED, pid,
			 (unsigned long long)open.limit + 16);
}

bool ml_inject_is_traced(pid_t pid)
{
	char status[STATUS_BYTES];

	return ml_proc_read(pid, "status", status, sizeof(status)) > 0 && number(status, "TracerPid:\t");
}

int ml_inject_refuse_stop(pid_t pid, int error, struct ml_refusal *refusal)
{
	if (error == EPERM)
		return refuse_ptrace(pid, refusal);
	if (error == ESRCH)
		return ml_refuse(refusal, "process %d has ended (name another one)", pid);
	if (error == EBUSY)
		return ml_refuse(refusal, "process %d is stopped (let it go on: kill -CONT %d)", pid, pid);
	return ml_refuse(refusal, "the threads of process %d could not be stopped: %s (try again)", pid, strerror(error));
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
