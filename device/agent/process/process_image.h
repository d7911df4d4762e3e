/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_PROCESS_IMAGE_H
#define MEMLEAK_PROCESS_IMAGE_H

/*
 * `memleakd image PID ADDRESS INODE`: the ELF file of that inode that is mapped at ADDRESS (hexadecimal), as far as it lies in the process's
 * memory, on standard output: for a file that nobody can open. Bytes are at their places in the file; what is not loaded
 * (sections, debugging information) is missing, and the header says that there are no sections; what the process wrote
 * (relocated data) is as it is there. Exit code: 0, or 4 after a line on standard error.
 */
int ml_process_image_print(int pid, const char *address, const char *inode);

#endif
