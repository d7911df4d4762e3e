/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TAIL return f(…): a call without one of our own on the stack: f finds the caller's registers and return address as they
 * were. A compiler that does not know the attribute makes it so when it optimises.
 */
#ifndef MEMLEAK_TAIL_H
#define MEMLEAK_TAIL_H

#if defined(__has_attribute)
#if __has_attribute(musttail)
#define TAIL __attribute__((musttail))
#endif
#endif
#ifndef TAIL
#define TAIL
#endif

#endif
