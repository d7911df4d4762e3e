/* SPDX-License-Identifier: Apache-2.0 */
/* libbpf's last complaint: the detail behind a program that cannot be loaded or placed. */
#ifndef MEMLEAK_BPF_COMPLAINT_H
#define MEMLEAK_BPF_COMPLAINT_H

extern char ml_bpf_complaint[512]; /* one line, "" = none */

/* From here on libbpf's warnings are kept; with MEMLEAKD_VERBOSE set, all it says goes to stderr too. */
void ml_bpf_keep_complaints(void);

/* Tells the host in an ERROR block what could not be done, why (an errno) and what to do. -1. */
int ml_bpf_refuse(const char *what, int error, const char *way_out);

#endif
