/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration lines of the host on standard input, then its control lines. */
#ifndef MEMLEAK_CONFIG_H
#define MEMLEAK_CONFIG_H

#include <stdbool.h>

#include "pair_rule.h"
#include "wire.h"

struct ml_patches;

#define ML_MAX_PROBES 256
#define ML_MAX_ARGUMENTS 4096

/* The part of a stack in evidence. */
enum ml_unwind {
	ML_UNWIND_CFI, /* as unwinding by CFI needs it */
	ML_UNWIND_FP,  /* shim: the chain of frame records only; BPF: the slice, in which the host walks the chain */
	ML_UNWIND_BOTH,
};

/* One probed function; all offsets are file offsets in `path`. */
struct ml_probe {
	ml_u32 function; /* enum ml_function */
	ml_u64 function_offset;
	ml_u64 entry_offset;
	bool has_return;
	ml_u64 return_offset;
	ml_u64 text_low; /* the allocator's own code; calls from there are internal */
	ml_u64 text_high;
	char *path;
};

/* An exported name of a function of --pairs (`pair_name`), or of the function that returns the sizes of its handles (`pair_size`). */
struct ml_pair_called {
	ml_u32 function; /* its number, from 0 */
	bool is_size_function;
	char *name;
};

#define ML_PAIR_NAMES_MAX 192 /* a function may have several names */

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
	ml_u64 evidence_after_ns; /* --evidence-after: only of stacks that hold a block of this age (BPF); 0: of all */
	bool adaptive; /* --adaptive: only of stacks that hold much or grow (BPF) */
	enum ml_unwind unwind;
	ml_u64 older_ns;
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 max_live;
	bool events;
	bool mmap;
	bool perf_event_path; /* use the path for kernels without a BPF ring buffer */
	bool without_multi;   /* a perf event for each probe, as before Linux 6.10 */
	int no_evidence;      /* accounting only: the baseline of the overhead benchmark; 2: no frame rules either (BPF) */
	bool empty_probes;    /* programs that do nothing: the floor of the overhead benchmark */
	ml_u64 nursery_bytes;
	ml_u64 ring_bytes;
	ml_u32 host_silence_s; /* host_watch.h; 0: no limit */
	char *shim_path;
	char *hook; /* how the shim hooks a running process: "plt" or "inline" (preload/attach.h) */
	struct ml_patches *patches; /* of "inline"; NULL: none */
	struct ml_probe probes[ML_MAX_PROBES];
	int n_probes;
	bool whole_machine;    /* `memleakd kernel` without a process; `memleakd bpf`: every process */
	int bystander;         /* then not measured: the host; 0: none */
	ml_u32 kernel_groups;  /* bits by enum ml_kernel_group */
	ml_u32 max_stacks;     /* kernel stacks at a time; 0: the default */
	bool without_btf;      /* as on a kernel without BTF */
	struct ml_pair rules[ML_FN_MAX]; /* by enum ml_function: of the heap, and from ML_FN_PAIR on of --pairs */
	int n_pairs;
	struct ml_pair_called pair_names[ML_PAIR_NAMES_MAX];
	int n_pair_names;
	bool no_heap; /* the shim: only functions of --pairs */
};

/* Lines of one kind of session only. take: 1 = parsed, 0 = not one of these lines, -1 = malformed. */
struct ml_config_lines {
	int (*take)(void *context, const char *key, char *value);
	void *context;
};

/* Reads lines up to `start`; `lines` are tried first. 0, or -1 after an ERROR block (or if standard input closed). */
int ml_config_read(struct ml_config *config, struct ml_config_lines lines);

/* Undoes percent quoting. The caller frees the result; NULL: out of memory. */
char *ml_config_unquote(const char *text);

enum ml_control {
	ML_CONTROL_NONE,
	ML_CONTROL_SNAPSHOT,
	ML_CONTROL_STOP,
	ML_CONTROL_DETACH, /* do not hold the command at its end */
	ML_CONTROL_RESUME, /* let the held command end */
	ML_CONTROL_CLOSED, /* the host is gone */
};

/* SIGTERM and SIGHUP become ML_CONTROL_STOP; SIGINT and SIGPIPE are ignored. */
void ml_control_catch_signals(void);

/* The next control line, waiting at most timeout_ms for one. */
enum ml_control ml_control_poll(int timeout_ms);

#endif
