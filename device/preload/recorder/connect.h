/* SPDX-License-Identifier: Apache-2.0 */
/* How a process joins a session: finds the agent, makes the segment, hands it over. */
#pragma once

#include <stddef.h>

#include "preload/segment/segment.h"

#define ML_CONNECT_VARIABLE "MEMLEAK_SESSION=" /* socket name ':' nonce as 16 hexadecimal digits */
#define ML_CONNECT_TEXT_MAX 96
#define ML_CONNECT_PRELOAD_MAX 4096

/* "MEMLEAK_SESSION=…" as it was found, or as it would have been. */
extern char ml_connect_variable[] __attribute__((visibility("hidden")));

/* Where the agent listens, and what proves that both ends belong to one session; nonce 0: there is none. */
struct ml_connect_session {
	char socket_name[ML_CONNECT_TEXT_MAX]; /* abstract */
	ml_u64 nonce;
	int is_bionic;  /* the libc is Android's, by the modules that are loaded */
	int is_of_file; /* LD_PRELOAD is ours though there is no MEMLEAK_SESSION */
};
extern struct ml_connect_session ml_connect_session __attribute__((visibility("hidden")));

/*
 * Remembers the session named in the environment, else in the file beside the shim: where only LD_PRELOAD could be set
 * (wrap.PACKAGE on Android has room for little more). 0 when there is none.
 */
int ml_connect_read_environment(char *const *environment);

/* The session that a text of this form names, in the place of any other: NAME:NONCE. 0 when it is none. */
int ml_connect_read_text(const char *text, size_t length);

/* 0 when the agent is gone for good: nobody listens at the session's name any more. */
int ml_connect_is_agent_there(void);
#define ML_CONNECT_PRELOAD "LD_PRELOAD="
#define ML_CONNECT_FILE_SUFFIX ".session"

/* Of a value of LD_PRELOAD the length of its first entry. The linkers of glibc and bionic split at both. */
static inline size_t ml_connect_first_entry(const char *value)
{
	size_t length = 0;

	while (value[length] && value[length] != ':' && value[length] != ' ')
		length++;
	return length;
}

/* 0, or -errno: the process goes on unrecorded. */
int ml_connect_segment(struct ml_view *view);

/* Sets the view to a fresh segment of zeros, and what both kinds of session begin with in its head. */
void ml_connect_begin(struct ml_view *view, void *base, const struct ml_settings *settings, const struct ml_layout *layout);

/* What ml_connect_segment() calls in place of the agent, for a session without one; NULL: there is an agent. */
extern int (*ml_connect_without_agent)(struct ml_view *view) __attribute__((visibility("hidden")));

/* The environment that the kernel gave the program, NULL where it cannot be found. On the first thread only. */
char **ml_connect_first_environment(void);

/* Takes our variable and our entry of LD_PRELOAD out of the environment, so that the target finds the user's. */
void ml_connect_clean_environment(char **environment);

/*
 * Makes `extended` (room for two more than `environment` has, and NULL) with our variables back in; `preload` is memory
 * for one of them. 0 when they were never taken out.
 */
int ml_connect_extend_environment(char *const *environment, char **extended, char *preload, size_t preload_bytes);
