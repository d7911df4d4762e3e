/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim is told of a session, by what the host asks for. */
#ifndef MEMLEAK_PRELOAD_SETTINGS_H
#define MEMLEAK_PRELOAD_SETTINGS_H

#include "preload/segment/handshake.h"
#include "preload/segment/pair_table.h"
#include "agent/protocol/config.h"

struct ml_settings ml_preload_settings(const struct ml_config *config);

/* The functions of --pairs, into memory that the shim shares. */
void ml_preload_tell_pairs(struct ml_pair_table *table, const struct ml_config *config);

/* LOG says what of it the shim does not do here. */
void ml_preload_tell_refused(const struct ml_config *config);

/* By which way the shim gets called. */
enum ml_collector ml_preload_collector(const struct ml_config *config);

#endif
