/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A jump in place of a call, so that the callee finds the caller's registers and return address. Compilers without the
 * attribute do the same when they optimise.
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
