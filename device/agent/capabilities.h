/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Tries each feature that a session needs, and prints the answers as one JSON object. Returns the exit code. */
int ml_capabilities_print(void);
