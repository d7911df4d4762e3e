/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Standard streams for a command on a device. The agent's own carry blocks, so the command's come by a second
 * connection of adb: a program there lends the three it was started with, by an abstract socket.
 */
#ifndef MEMLEAK_LENT_STDIO_H
#define MEMLEAK_LENT_STDIO_H

/*
 * `memleakd lend NAME`: waits for one borrower of the same user, gives it descriptors 0, 1 and 2, and ends. The
 * connection lasts as long as somebody has them open. Exit code: 0, or 1 when nobody came or it cannot listen.
 */
int ml_stdio_lend(const char *name);

/*
 * Descriptors 3, 4 and 5 become what `memleakd lend NAME` lends, which may be started later than we are. 0, or -1
 * after a line on standard error.
 */
int ml_stdio_borrow(const char *name);

#endif
