/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects a lost host by its silence. A device whose network is gone keeps our input open and accepts no output until TCP gives up,
 * so a host may promise a line at regular intervals.
 */
#pragma once

#include "wire.h"

/*
 * The host counts as gone after silence_s without ml_host_heard(). The first line has ten minutes more, because no input is read
 * before the session runs. 0: no limit.
 */
void ml_host_expect(ml_u32 silence_s);

/* Called for each line of the host. */
void ml_host_heard(void);

/* Whether the host is gone. Becoming true interrupts a blocked write or poll, and so does each second after. */
bool ml_host_is_silent(void);
