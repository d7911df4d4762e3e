/* SPDX-License-Identifier: Apache-2.0 */
/* One session of the shim measures a process at a time: a second one would hook the first one's hooks, and take its calls. */
#pragma once

#include <sys/types.h>

#include "agent/inject/checks.h"

/*
 * Claims the process until this process and its children have ended. Only a process that may trace the target can claim it. Returns -1 and
 * the refusal if another session measures it.
 */
int ml_inject_claim(pid_t pid, struct ml_refusal *refusal);
