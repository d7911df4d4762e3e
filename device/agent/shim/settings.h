/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a session for the shim, from its configuration. */
#pragma once

#include "preload/segment/handshake.h"
#include "preload/segment/pair_table.h"
#include "agent/protocol/config.h"

struct ml_settings ml_preload_settings(const struct ml_config *config);

/* Copies the functions of --pairs into the shared segment. */
void ml_preload_settings_pairs(struct ml_pair_table *table, const struct ml_config *config);

/* Logs options that the shim does not support here. */
void ml_preload_settings_log(const struct ml_config *config);

/* How the shim is called: preload, plt or inline. */
enum ml_collector ml_preload_collector(const struct ml_config *config);
