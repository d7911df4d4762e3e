/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration lines of the host on standard input; its control lines follow (host_lines.h). */
#pragma once

#include "agent/protocol/host_lines.h"
#include "pair_rule.h"
#include "wire.h"

struct ml_patches;

#define ML_MAX_PROBES 256
#define ML_MAX_EXITS 1024
#define ML_MAX_ARGUMENTS 4096

/* The part of a stack in evidence. */
enum ml_unwind {
	ML_UNWIND_CFI, /* as unwinding by CFI needs it */
	ML_UNWIND_FP,  /* shim: the chain of frame records only; BPF: the slice, in which the host walks the chain */
	ML_UNWIND_BOTH,
};

/*
 * A file that functions are probed in. Opening it checks that it is the one that the host read (probes/probed_file.h), and then every
 * probe is placed by the descriptor: at the path another file may be by now.
 */
struct ml_probed_file {
	char *path; /* for messages */
	struct ml_file_version {
		ml_u64 device, inode, bytes, modified_ns; /* stat(2) */
	} version; /* inode 0: the host read a copy; then opening sets it */
	int fd; /* -1: not open */
	char by_descriptor[32]; /* "/proc/self/fd/N" */
};

/* One probed function; all offsets are file offsets. */
struct ml_probe {
	ml_u32 function; /* enum ml_function */
	ml_u64 function_offset;
	ml_u64 entry_offset;
	bool has_return;
	ml_u64 return_offset;
	ml_u64 text_low; /* the allocator's own code; calls from there are internal */
	ml_u64 text_high;
	ml_u32 file; /* index in ml_config.files */
};

/* An exported name of a function of --pairs (`pair_name`), or of the function that returns the sizes of its handles (`pair_size`). */
struct ml_pair_called {
	ml_u32 function; /* its number, from 0 */
	bool is_size_function;
	char *name;
};

#define ML_PAIR_NAMES_MAX 384 /* a function may have several names */

struct ml_config {
	int pid;     /* 0: a command is started, or a process awaited */
	char *await; /* by which a process joins that another program starts (shim); NULL: none */
	char **argv; /* NULL-terminated; empty = attach to pid */
	int n_arguments;
	char **env_changes; /* NAME=VALUE; NULL-terminated */
	int n_env_changes;
	int stdio[3]; /* for the command; -1 = /dev/null */
	bool follow;
	bool hold_end; /* the command is stopped at its end until the host has scanned it (exit_hold.h) */
	ml_u32 stack_bytes;
	ml_u64 sample_bytes;
	bool every_stack;
	bool extend_stacks; /* --extend-stacks: also words of the stack above the slice */
	enum ml_unwind unwind;
	ml_u64 older_ns;
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 max_live;
	bool events;
	int mmap; /* the region ledger; 2: its calls are events, too, and a tracer without it says so */
	bool perf_event_path; /* use the path for kernels without a BPF ring buffer */
	bool without_multi;   /* a perf event for each probe, as before Linux 6.10 */
	bool lends_memory; /* the program may call vfork() or clone(): probes that its children in the same memory pass, too */
	int no_evidence; /* accounting only: the baseline of the overhead benchmark; 2: no frame rules either (BPF) */
	bool empty_probes; /* programs that do nothing: the floor of the overhead benchmark */
	ml_u64 nursery_bytes;
	ml_u64 ring_bytes;
	ml_u32 host_silence_s; /* host_watch.h; 0: no limit */
	char *shim_path;
	char *hook; /* how the shim hooks a running process: "plt" or "inline" (preload/attach.h) */
	struct ml_patches *patches; /* of "inline"; NULL: none */
	struct ml_probe probes[ML_MAX_PROBES];
	int n_probes;
	struct ml_exit {
		int probe; /* of its function: index in `probes` */
		ml_u64 offset;
	} exits[ML_MAX_EXITS]; /* instructions that leave a function, instead of a return probe */
	int n_exits;
	struct ml_probed_file *files;
	size_t n_files, files_room;
	bool whole_machine; /* `memleakd kernel` without a process; `memleakd bpf`: every process */
	int bystander; /* then not measured: the host; 0: none */
	ml_u32 kernel_groups; /* bits by enum ml_kernel_group */
	ml_u32 max_stacks; /* kernel stacks at a time; 0: the default */
	bool without_btf; /* as on a kernel without BTF */
	struct ml_pair rules[ML_FN_MAX]; /* by enum ml_function: of the heap, and from ML_FN_PAIR on of --pairs */
	int n_pairs;
	struct ml_pair_called pair_names[ML_PAIR_NAMES_MAX];
	int n_pair_names;
	bool no_heap; /* the shim: only functions of --pairs */
	bool no_python_objects; /* the shim: Python's allocators stay as they are */
	bool no_python_lines; /* … and evidence has no frames in Python */
};

/* Lines of one kind of session only. take: 1 = parsed, 0 = not one of these lines, -1 = malformed. */
struct ml_config_lines {
	int (*take)(void *context, const char *key, char *value);
	void *context;
};

/* Reads lines up to `start`; `lines` are tried first. 0, or -1 after an ERROR block (or if standard input closed). */
int ml_config_read(struct ml_config *config, struct ml_config_lines lines);

/* Whether the whole text is a number of that base. */
bool ml_config_number(const char *text, int base, ml_u64 *value);

/* Index of the file in config->files, which gets it if it is new. -1: out of memory. */
int ml_config_file(struct ml_config *config, const char *quoted_path);

/* Undoes percent quoting. The caller frees the result; NULL: out of memory. */
char *ml_config_unquote(const char *text);
