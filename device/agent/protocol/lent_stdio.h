/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes standard streams to a command on a device. The agent's own carry blocks, so a second adb connection runs a program there
 * that lends its three streams through an abstract socket.
 */
#pragma once

/*
 * `memleakd lend NAME`: waits for one borrower of the same user, sends it descriptors 0, 1 and 2, and ends. The connection lasts
 * while a process has them open. Exit code: 0, or 1 without a borrower or a socket.
 */
int ml_stdio_lend(const char *name);

/*
 * Receives the streams of `memleakd lend NAME`, which may start later, as descriptors 3, 4 and 5. 0, or -1 after a line on
 * standard error.
 */
int ml_stdio_borrow(const char *name);
