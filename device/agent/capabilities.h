/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_CAPABILITIES_H
#define MEMLEAK_CAPABILITIES_H

/* Tries what a session needs and prints the answers as one JSON object; returns the exit code. */
int ml_capabilities_print(void);

#endif
