/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_INJECT_COMMAND_H
#define MEMLEAK_INJECT_COMMAND_H

/*
 * `memleakd inject PID LIBRARY FUNCTION [ARGUMENT]`: loads the library into the process and calls the function, both once, and
 * prints `RESULT THREADS LOOKS LONGEST_NS CALL_NS TOTAL_NS`. Returns the exit code: 0, or 4 with the reason on standard error.
 */
int ml_inject_command(char *const *words, int n_words);

#endif
