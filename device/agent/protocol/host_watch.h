/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the host is still there where its end cannot be seen: a device whose network is gone keeps our input open and
 * takes no output, for as long as TCP hopes. Then a host that has promised to speak every now and then tells by silence.
 */
#ifndef MEMLEAK_HOST_WATCH_H
#define MEMLEAK_HOST_WATCH_H

#include <stdbool.h>

#include "wire.h"

/*
 * The host is gone after so many seconds without ml_host_heard(), counted from the first one on: until a session runs
 * nobody reads what the host says, and it has ten minutes more. 0 = it promises nothing.
 */
void ml_host_expect(ml_u32 silence_s);

/* A line of the host's was read. */
void ml_host_heard(void);

/* A blocked write or poll is interrupted when this becomes true, and every second after. */
bool ml_host_is_silent(void);

#endif
