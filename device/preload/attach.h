/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching to a running process: a line from the agent comes in, patched slots and a recorder that runs go out.
 * This header has the functions that libmemleak.so exports beside those that it interposes.
 *
 * The library is loaded by dlopen(path, RTLD_NOW | RTLD_LOCAL). Its constructor then does nothing, it does not
 * interpose, and it is never unloaded (DF_1_NODELETE). After that memleak_attach() is called on a thread that holds no
 * lock of the loader or the allocator and is in no signal handler; other threads keep running.
 *
 *   int result = memleak_attach("NAME:NONCE mode=plt");      // ML_ATTACH_…, or -errno
 *   …
 *   int left = memleak_detach();                             // slots that could not be restored, or -errno
 *
 * NAME:NONCE are the agent's socket and ML_NONCE_DIGITS, as in MEMLEAK_SESSION. Modes:
 *   plt     points the slots through which loaded modules call the allocator to our entries. Calls of the dynamic
 *           linker are hooked to notice modules that come and go.
 *   inline  patches nothing here. Before the call the agent writes into memleak_hooks (memleak_pair_originals for
 *           --pairs) where it moved the beginning of each function. After the call it patches the functions. It
 *           restores them after memleak_detach(); until then calls are only forwarded.
 *
 * A second memleak_attach() detaches from the old session and joins the new one; patched slots stay, new modules are
 * added. Both functions can be called repeatedly, by one thread at a time (else ML_ATTACH_BUSY). After memleak_detach()
 * our code runs only where a pointer was copied from a slot; such calls are forwarded.
 */
#pragma once

#include "preload/segment/attach_abi.h"

extern struct memleak_hook memleak_hooks[] __attribute__((visibility("default")));

int memleak_attach(const char *line) __attribute__((visibility("default")));
int memleak_detach(void) __attribute__((visibility("default")));

/*
 * Attaches by slots for a session without an agent: ML_ATTACH_… or -errno. Leaving keeps the recorded data until
 * ml_recorder_retire().
 */
int ml_attach_own(void);
void ml_attach_leave_own(void);
