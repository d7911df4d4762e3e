/* SPDX-License-Identifier: Apache-2.0 */
/* NAME:NONCE: the abstract socket of a session, and the proof that a process belongs to it. */
#pragma once

#include "preload/segment/handshake.h"

#define ML_SESSION_WORD_MAX 96 /* includes the final zero; the shim's ML_CONNECT_TEXT_MAX */

struct ml_session_word {
	char name[ML_SESSION_WORD_MAX];
	char text[ML_SESSION_WORD_MAX]; /* as the shim reads it; only for the eyes of the target's user */
	struct ml_nonce nonce;
};

/* Makes up a word of random parts, or parses an awaited one. Returns a listener by its name, or -1 with errno. */
int ml_session_word_listen(struct ml_session_word *word, const char *awaited);
