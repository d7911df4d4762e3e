/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * `memleakd scan PID [STACK_POINTER]`: stops the process, searches its writable memory for words that may refer to some of it, lets it
 * go on, and then writes blocks: SCAN, MAPS, STOPPED_THREADS, SCANNED, END; or ERROR and END. With STACK_POINTER (hexadecimal) it
 * is held already, by another agent, and that is its last thread's. Exit code: 0, or 4 after an ERROR.
 */
int ml_memory_scan(int pid, const char *stack_pointer);
