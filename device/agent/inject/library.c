// SPDX-License-Identifier: Apache-2.0
#include "agent/inject/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/process/proc_file.h"

#define CALL_TIMEOUT_MS 10000
#define GLIBC_DLOPEN_MODE 0x80000000u /* expected by __libc_dlopen_mode() */
#define MEMORY_FILE "/proc/self/fd/"
#define MEMORY_FILE_FLAGS 1 /* MFD_CLOEXEC */

ml_u64 ml_inject_function(const struct ml_target_objects *objects, const char *name)
{
	ml_u64 address = 0;

	for (size_t i = 0; i < objects->n && !address; i++)
		address = ml_target_function(objects->pid, &objects->objects[i], name);
	return address;
}

/* glibc before 2.34 has dlopen() in a library that not every program loads. */
static ml_u64 find_dlopen(const struct ml_target_objects *objects, ml_u64 *mode)
{
	ml_u64 address = ml_inject_function(objects, "dlopen");

	*mode = RTLD_NOW;
	if (address)
		return address;
	*mode = RTLD_NOW | GLIBC_DLOPEN_MODE;
	return ml_inject_function(objects, "__libc_dlopen_mode");
}

const struct ml_target_object *ml_inject_loaded(const struct ml_target_objects *objects, const char *library,
						const char *function)
{
	for (size_t i = 0; i < objects->n; i++) {
		const struct ml_target_object *object = &objects->objects[i];

		if (!strncmp(object->path, MEMORY_FILE, sizeof(MEMORY_FILE) - 1) &&
		    ml_target_function(objects->pid, object, function))
			return object;
	}
	return ml_target_objects_named(objects, library);
}

/* Not /proc/self: the agent may be invisible in the PID namespace of the process. */
static bool has_proc(pid_t pid)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/root/proc/version", pid);
	return !access(path, F_OK);
}

int ml_inject_can_load(const struct ml_target_objects *objects, const char *library, struct ml_refusal *refusal)
{
	pid_t pid = (pid_t)objects->pid;
	ml_u64 mode;

	if (!objects->n)
		return ml_refuse(refusal, "the dynamic linker of process %d is not ready (try again when the program runs)",
				 pid);
	if (!find_dlopen(objects, &mode))
		return ml_refuse(refusal, "no library of process %d defines dlopen() (use --tracer bpf)", pid);
	if (!ml_inject_shares_files(pid) && (!has_proc(pid) || !ml_inject_function(objects, "memfd_create")))
		return ml_refuse(refusal,
				 "process %d sees other files than the agent, and %s: %s cannot be loaded (use --tracer bpf)",
				 pid, has_proc(pid) ? "its libc has no memfd_create()" : "no /proc", library);
	return 0;
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

int ml_inject_call(struct ml_inject_caller *caller, const char *name, const struct ml_ptrace_request *request,
		   struct ml_ptrace_called *called, struct ml_refusal *refusal)
{
	*called = ml_ptrace_make_call(caller->pid, caller->tid, caller->state, request);
	switch (called->end) {
	case ML_CALL_RETURNED: return 0;
	case ML_CALL_FAULTED:
		return ml_refuse(refusal, "%s() in process %d raised signal %d (%s), and was undone (use --tracer bpf)", name,
				 caller->pid, called->signal, strsignal(called->signal));
	case ML_CALL_TIMEOUT:
		caller->is_lost = true;
		return ml_refuse(refusal, "%s() in process %d did not return in time (a lock may be held; use --tracer bpf)",
				 name, caller->pid);
	case ML_CALL_GONE:
		caller->is_lost = true;
		return ml_refuse(refusal, "process %d has ended or become another program meanwhile (try again)", caller->pid);
	default:
		return ml_refuse(refusal, "%s() could not be called in process %d: %s (use --tracer bpf)", name, caller->pid,
				 strerror(errno));
	}
}

/* Refuses with the text of dlerror(). */
static int refuse_library(struct ml_inject_caller *caller, const char *library, struct ml_refusal *refusal)
{
	struct ml_ptrace_request request = { .function = ml_inject_function(caller->objects, "dlerror"),
					     .code = caller->code,
					     .patience_ms = CALL_TIMEOUT_MS };
	struct ml_ptrace_called called = { 0 };
	char text[256] = "";

	if (request.function && ml_inject_call(caller, "dlerror", &request, &called, refusal))
		return -1;
	for (size_t i = 0; called.has_result && called.result && i + 1 < sizeof(text); i++)
		if (ml_target_read(caller->objects->pid, called.result + i, text + i, 1) || !text[i])
			break;
	return ml_refuse(refusal, "process %d could not load %s: %s (%s)", caller->pid, library,
			 *text ? text : "its dynamic linker gave no reason",
			 "make the file readable for its user, or use --tracer bpf");
}

/* path: in the process. */
static int load_path(struct ml_inject_caller *caller, const char *library, const char *path, struct ml_refusal *refusal)
{
	struct ml_ptrace_request request = { .code = caller->code, .text = path, .patience_ms = CALL_TIMEOUT_MS };
	struct ml_ptrace_called called;

	request.function = find_dlopen(caller->objects, &request.arguments[1]);
	if (ml_inject_call(caller, "dlopen", &request, &called, refusal))
		return -1;
	ml_target_objects_free(caller->objects);
	if (ml_target_objects_read(caller->objects, (ml_u32)caller->pid) || !ml_target_objects_named(caller->objects, path))
		return refuse_library(caller, library, refusal);
	return 0;
}

/* ---- a memory file -------------------------------------------------------------------------------------- */

struct descriptor {
	pid_t pid;
	const char *target; /* of its link */
};

static bool leads_to(void *context, int number)
{
	const struct descriptor *wanted = context;
	char path[64], target[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", wanted->pid, number);
	n = readlink(path, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = '\0';
	return !strcmp(target, wanted->target);
}

/* Descriptor of the process for the memory file; negative: none. */
static int find_descriptor(pid_t pid, const char *name)
{
	char target[64];

	snprintf(target, sizeof(target), "/memfd:%s (deleted)", name);
	return ml_proc_find(pid, "fd", leads_to, &(struct descriptor){ pid, target });
}

/* Of the kernel's own mount, which has memory files and no file with a name (mm/shmem.c: shm_mnt). 0: unknown. */
static dev_t memory_device(void)
{
	int fd = (int)syscall(SYS_memfd_create, "", MEMORY_FILE_FLAGS);
	struct stat status = { 0 };

	if (fd >= 0) {
		fstat(fd, &status);
		close(fd);
	}
	return status.st_dev;
}

static uid_t owner_of_new_files(pid_t pid)
{
	char status[2048];
	uid_t ids[4] = { (uid_t)-1, (uid_t)-1, (uid_t)-1, (uid_t)-1 }; /* real, effective, saved, of the file system */
	const char *line = ml_proc_read(pid, "status", status, sizeof(status)) > 0 ? strstr(status, "\nUid:\t") : NULL;

	if (line)
		sscanf(line + strlen("\nUid:\t"), "%u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]);
	return ids[3];
}

/*
 * Opens the process's memory file for writing; -1: it is none. The process may have given the name of one to any file, by a mount, which
 * must not be written with the rights of root. O_PATH opens nothing.
 */
static int open_memory_file(pid_t pid, int descriptor)
{
	char name[32];
	struct stat status;
	int found, into = -1;

	snprintf(name, sizeof(name), "fd/%d", descriptor);
	found = ml_proc_open(pid, name, O_PATH);
	if (found < 0)
		return -1;
	if (!fstat(found, &status) && S_ISREG(status.st_mode) && !status.st_size && status.st_uid == owner_of_new_files(pid) &&
	    status.st_dev == memory_device()) {
		snprintf(name, sizeof(name), MEMORY_FILE "%d", found);
		into = open(name, O_WRONLY | O_CLOEXEC);
	} else {
		errno = EPERM;
	}
	close(found);
	return into;
}

static int fill(pid_t pid, int descriptor, const char *library)
{
	struct stat status;
	off_t at = 0;
	int from = open(library, O_RDONLY | O_CLOEXEC), into = open_memory_file(pid, descriptor);

	if (from >= 0 && into >= 0 && !fstat(from, &status))
		while (at < status.st_size && sendfile(into, from, &at, (size_t)(status.st_size - at)) > 0)
			;
	if (from >= 0)
		close(from);
	if (into >= 0)
		close(into);
	return from >= 0 && into >= 0 && at && at == status.st_size ? 0 : -1;
}

static int load_memory_file(struct ml_inject_caller *caller, const char *library, struct ml_refusal *refusal)
{
	char name[32], path[32];
	struct ml_ptrace_request make = { .function = ml_inject_function(caller->objects, "memfd_create"),
					  .code = caller->code,
					  .arguments = { 0, MEMORY_FILE_FLAGS },
					  .text = name,
					  .patience_ms = CALL_TIMEOUT_MS };
	struct ml_ptrace_request unmake = { .function = ml_inject_function(caller->objects, "close"),
					    .code = caller->code,
					    .patience_ms = CALL_TIMEOUT_MS };
	struct ml_ptrace_called called;
	struct ml_refusal ignored;
	int descriptor, failed;

	snprintf(name, sizeof(name), "libmemleak.so.%d", (int)getpid());
	if (ml_inject_call(caller, "memfd_create", &make, &called, refusal))
		return -1;
	descriptor = find_descriptor(caller->pid, name);
	if (descriptor < 0)
		return ml_refuse(refusal, "process %d could not make a file for the shim (use --tracer bpf)", caller->pid);
	snprintf(path, sizeof(path), MEMORY_FILE "%d", descriptor);
	failed = fill(caller->pid, descriptor, library) ?
			 ml_refuse(refusal, "the shim could not be written for process %d: %s (free some memory)", caller->pid,
				   strerror(errno)) :
			 load_path(caller, library, path, refusal);
	unmake.arguments[0] = (ml_u64)descriptor;
	if (!caller->is_lost && unmake.function && ml_inject_call(caller, "close", &unmake, &called, &ignored))
		failed = failed ? failed : ml_refuse(refusal, "%s", ignored.text);
	return failed;
}

int ml_inject_load(struct ml_inject_caller *caller, const char *library, const char *function, struct ml_refusal *refusal)
{
	if (ml_inject_loaded(caller->objects, library, function))
		return 0;
	return ml_inject_shares_files(caller->pid) ? load_path(caller, library, library, refusal) :
						     load_memory_file(caller, library, refusal);
}
