/* SPDX-License-Identifier: Apache-2.0 */
/* What the host asks for: configuration lines on standard input, then control lines. */
#ifndef MEMLEAK_CONFIG_H
#define MEMLEAK_CONFIG_H

#include <stdbool.h>

#include "pair_rule.h"
#include "wire.h"

struct ml_patches;

#define ML_MAX_PROBES 256
#define ML_MAX_ARGUMENTS 4096

/* What evidence holds of a stack. */
enum ml_unwind {
	ML_UNWIND_CFI, /* what unwinding by CFI needs */
	ML_UNWIND_FP,  /* preload: the chain of frame records and no more; BPF: the slice, in which the host walks the chain */
	ML_UNWIND_BOTH,
};

/* One probed function; all offsets are file offsets in `path`. */
struct ml_probe {
	ml_u32 function; /* enum ml_function */
	ml_u64 function_offset;
	ml_u64 entry_offset;
	bool has_return;
	ml_u64 return_offset;
	ml_u64 text_low; /* the allocator's own code: a call from there is internal */
	ml_u64 text_high;
	char *path;
};

/* How a function of --pairs is called by others (`pair_name`), or the one that tells the sizes of its handles (`pair_size`). */
struct ml_pair_called {
	ml_u32 function; /* its number, from 0 */
	bool is_size_function;
	char *name;
};

#define ML_PAIR_NAMES_MAX 192 /* a function may have several */

struct ml_config {
	int pid;     /* 0 = a command is started, or awaited */
	char *await; /* NAME:NONCE, by which a process joins that somebody else starts (preload); NULL = none */
	char **argv; /* NULL-terminated; empty = attach to pid */
	int n_arguments;
	char **env_changes; /* NAME=VALUE; NULL-terminated */
	int n_env_changes;
	int stdio[3]; /* for the command; -1 = /dev/null */
	bool follow;
	bool hold_end; /* the command stands still at its end until the host has looked (exit_hold.h) */
	ml_u32 stack_bytes;
	ml_u64 sample_bytes;
	bool every_stack;
	bool extend_stacks; /* of stacks longer than their slices also what leads through the rest */
	ml_u64 evidence_after_ns; /* evidence of stacks that have held a block for so long, of no other (BPF); 0 = of all */
	bool adaptive; /* evidence of stacks that hold much or grow, of no other (BPF) */
	enum ml_unwind unwind;
	ml_u64 older_ns;
	ml_u64 min_size;
	ml_u64 max_size;
	ml_u64 max_live;
	bool events;
	bool mmap;
	bool perf_event_path; /* force the path for kernels without a BPF ring buffer */
	bool without_multi;   /* a perf event for each probe, as before Linux 6.10 */
	int no_evidence;      /* accounting only: the baseline of the overhead benchmark; 2 = and no frame rules (BPF) */
	bool empty_probes;    /* programs that do nothing: the floor of the overhead benchmark */
	ml_u64 nursery_bytes;
	ml_u64 ring_bytes;
	ml_u32 host_silence_s; /* see host_watch.h; 0 = the host is silent as long as it likes */
	char *shim_path;
	char *hook; /* how the shim gets called in a process that runs already: "plt" or "inline" (preload/attach.h) */
	struct ml_patches *patches; /* of "inline": what is changed in the process; NULL = nothing */
	struct ml_probe probes[ML_MAX_PROBES];
	int n_probes;
	bool whole_machine;    /* `memleakd kernel` without a process; `memleakd bpf`: every process */
	int bystander;         /* whose allocations do not count then: the host's; 0 = everybody's do */
	ml_u32 kernel_groups;  /* bits by enum ml_kernel_group */
	ml_u32 max_stacks;     /* of the kernel, told apart at a time; 0 = as many as are usual */
	bool without_btf;      /* as on a kernel that has none */
	struct ml_pair rules[ML_FN_MAX]; /* by enum ml_function: of the heap, and from ML_FN_PAIR on of --pairs */
	int n_pairs;
	struct ml_pair_called pair_names[ML_PAIR_NAMES_MAX];
	int n_pair_names;
	bool no_heap; /* the shim: functions of --pairs alone */
};

/* Lines of one kind of session only. take: 1 = parsed, 0 = not one of these lines, -1 = malformed. */
struct ml_config_lines {
	int (*take)(void *context, const char *key, char *value);
	void *context;
};

/* Reads lines up to `start`; `lines` are tried first. 0, or -1 after an ERROR block (or if standard input closed). */
int ml_config_read(struct ml_config *config, struct ml_config_lines lines);

/* Undoes percent quoting into memory of its own; NULL: there is none. */
char *ml_config_unquote(const char *text);

enum ml_control {
	ML_CONTROL_NONE,
	ML_CONTROL_SNAPSHOT,
	ML_CONTROL_STOP,
	ML_CONTROL_DETACH, /* nobody is to be held at the end */
	ML_CONTROL_RESUME, /* who is held may end */
	ML_CONTROL_CLOSED, /* the host is gone */
};

/* SIGTERM and SIGHUP become ML_CONTROL_STOP; SIGINT and SIGPIPE are ignored. */
void ml_control_catch_signals(void);

/* The next control line, waiting at most timeout_ms for one. */
enum ml_control ml_control_poll(int timeout_ms);

#endif
