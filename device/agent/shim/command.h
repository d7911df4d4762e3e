/* SPDX-License-Identifier: Apache-2.0 */
/* A command that is started with the shim before its own libraries, and why no process of a session has loaded it. */
#pragma once

#include "agent/session/loop.h"

/* word: the session's, for the shim. Puts the shim first in LD_PRELOAD, so that it can remove exactly its own entry. -1: reported. */
int ml_preload_command_start(const struct ml_config *config, const char *word, struct ml_child *child);

/* Reports that no process has joined, and returns the reason for the END block. */
enum ml_reason ml_preload_report_absent(const struct ml_session *base);
