/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEMLEAK_PROCESS_IMAGE_H
#define MEMLEAK_PROCESS_IMAGE_H

/*
 * `memleakd image PID ADDRESS INODE`: writes the ELF file of that inode mapped at ADDRESS (hexadecimal) to standard output,
 * from the process's memory: for files that cannot be opened. Bytes keep their file offsets. Unloaded parts (sections,
 * debugging information) are missing, and the header has no sections. Modified parts (relocated data) are
 * as they are in memory. Exit code: 0, or 4 after a line on standard error.
 */
int ml_process_image_print(int pid, const char *address, const char *inode);

#endif
