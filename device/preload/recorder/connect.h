/* SPDX-License-Identifier: Apache-2.0 */
/* Joining a session: connects to the agent, creates the segment and passes it on. */
#pragma once

#include "preload/segment/segment.h"

#define ML_CONNECT_VARIABLE "MEMLEAK_SESSION=" /* socket name ':' nonce as ML_NONCE_DIGITS */
#define ML_CONNECT_TEXT_MAX 96
#define ML_CONNECT_PRELOAD_MAX 4096

/* "MEMLEAK_SESSION=…" as found, or as it would have been. */
extern char ml_connect_variable[] __attribute__((visibility("hidden")));

/* The agent's socket, and the nonce that both ends must know; not set: no session. */
struct ml_connect_session {
	char socket_name[ML_CONNECT_TEXT_MAX]; /* abstract */
	struct ml_nonce nonce;
	int is_bionic;  /* the loaded libc is Android's */
	int is_of_file; /* LD_PRELOAD is ours, but MEMLEAK_SESSION is not set */
};
extern struct ml_connect_session ml_connect_session __attribute__((visibility("hidden")));

/*
 * Finds the session in the environment, else in the file beside the shim, which serves where only LD_PRELOAD could be
 * set (wrap.PACKAGE on Android is short). Returns 0 if there is none.
 */
int ml_connect_read_environment(char *const *environment);

/* Replaces the session by that of a text NAME:NONCE. Returns 0 if it has another form. */
int ml_connect_read_text(const char *text, size_t length);

/* 0 if the agent has exited: its socket refuses connections. */
int ml_connect_is_agent_there(void);

/* 0 or -errno; then the process is not recorded. */
int ml_connect_segment(struct ml_view *view);

/* Points the view to a segment of zeros and fills in what every session begins with. */
void ml_connect_begin(struct ml_view *view, void *base, const struct ml_settings *settings);

/* ml_connect_segment() of a session without an agent; NULL: there is an agent. */
extern int (*ml_connect_without_agent)(struct ml_view *view) __attribute__((visibility("hidden")));

/* The environment that the kernel passed to the program, or NULL. To be called on the first thread only. */
char **ml_connect_first_environment(void);

/* Removes our variable and our entry of LD_PRELOAD, so that the target sees the user's environment. */
void ml_connect_clean_environment(char **environment);

/*
 * Copies the environment to `extended` (room for two more variables and NULL) with our variables added; `preload` is
 * memory for one of them. Returns 0 if they were never removed.
 */
int ml_connect_extend_environment(char *const *environment, char **extended, char *preload, size_t preload_bytes);

/* … without ours, for a program that must not join. Returns 0 if there are none. */
int ml_connect_reduce_environment(char *const *environment, char **reduced, char *preload, size_t preload_bytes);
