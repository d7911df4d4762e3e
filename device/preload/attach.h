/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways into a process that already runs: what libmemleak.so exports besides the functions that it interposes.
 *
 * The library is brought in by dlopen(path, RTLD_NOW | RTLD_LOCAL): its constructor then does nothing, it never
 * interposes, and it is never unloaded (DF_1_NODELETE). After that whoever brought it in calls memleak_attach() on a
 * thread that holds no lock of the loader's or of the allocator's and is in no signal handler; other threads run on.
 *
 *   int result = memleak_attach("NAME:NONCE mode=plt");      // ML_ATTACH_…, or -errno
 *   …
 *   int left = memleak_detach();                             // slots that could not be restored, or -errno
 *
 * NAME:NONCE are the agent's socket and 16 hexadecimal digits, as in MEMLEAK_SESSION. Modes:
 *   plt     the slots of all loaded modules through which the allocator is called are set to our entries; calls of the
 *           dynamic linker keep an eye on modules that come and go.
 *   inline  nothing is patched here. Before the call, the agent wrote into memleak_hooks where the beginning of each
 *           patched function was moved to (memleak_pair_originals for those of --pairs); after the call, it lets the functions themselves lead to our entries. It takes
 *           its bytes back after memleak_detach(): until then what is called only forwards.
 *
 * A second memleak_attach() detaches from the old session and arms under the new one. Slots that are patched stay so,
 * new modules join. Both functions are callable again and again, by one thread at a time (ML_ATTACH_BUSY for the other).
 * After memleak_detach() nothing of ours is called any more, but by who has kept a pointer from a slot: such calls
 * are forwarded.
 */
#pragma once

#include "preload/segment/attach_abi.h"

extern struct memleak_hook memleak_hooks[] __attribute__((visibility("default")));

int memleak_attach(const char *line) __attribute__((visibility("default")));
int memleak_detach(void) __attribute__((visibility("default")));

/*
 * By slots, for a session without an agent (linked.h): ML_ATTACH_…, or -errno. Leaving keeps what was recorded, until
 * ml_recorder_retire().
 */
int ml_attach_own(void);
void ml_attach_leave_own(void);
