/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_CAPABILITIES_H
#define MEMLEAK_CAPABILITIES_H

/* Tries each feature that a session needs, and prints the answers as one JSON object. Returns the exit code. */
int ml_capabilities_print(void);

#endif
