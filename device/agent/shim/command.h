/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of a session for the shim, a command that is started with the shim before its own libraries, and why no
 * process of a session has loaded it.
 */
#pragma once

#include "agent/protocol/config.h"
#include "agent/session/loop.h"
#include "preload/segment/handshake.h"
#include "preload/segment/pair_table.h"

/* word: the session's, for the shim. Puts the shim first in LD_PRELOAD, so that it can remove exactly its own entry. -1: reported. */
int ml_preload_command_start(const struct ml_config *config, const char *word, struct ml_child *child);

/* Reports that no process has joined, and returns the reason for the END block. */
enum ml_reason ml_preload_report_absent(const struct ml_session *base);

struct ml_settings ml_preload_settings(const struct ml_config *config);

/* Copies the functions of --pairs into the shared segment. */
void ml_preload_settings_pairs(struct ml_pair_table *table, const struct ml_config *config);

/* Logs options that the shim does not support here. */
void ml_preload_settings_log(const struct ml_config *config);

/* How the shim is called: preload, plt or inline. */
enum ml_collector ml_preload_collector(const struct ml_config *config);
