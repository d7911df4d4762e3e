/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A jump in place of a call: the callee finds the caller's registers and return address as they were. A compiler that
 * does not know the attribute does the same when it optimises.
 */
#pragma once

#if defined(__has_attribute)
#if __has_attribute(musttail)
#define TAIL __attribute__((musttail))
#endif
#endif
#ifndef TAIL
#define TAIL
#endif
