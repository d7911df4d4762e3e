/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that a program sets for itself, and that are not meant for the shim's memory. */
#pragma once

#if __SIZEOF_LONG__ == 8
/* Before exec: the new program gets the limit that this one asked for. */
void ml_limits_restore(void);
#else
static inline void ml_limits_restore(void)
{
}
#endif
