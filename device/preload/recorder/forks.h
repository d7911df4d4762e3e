/* SPDX-License-Identifier: Apache-2.0 */
/* How a process learns that it is a child, and that the books it sees are its parent's. */
#pragma once

/*
 * A word that fork() sets to 0 in the child; a child of vfork() shares it with its parent. NULL where there is neither
 * kernel nor libc to do it. Before Linux 4.14 the libc does: then a child made by clone() itself is taken for its parent.
 */
int *ml_forks_watched_word(void);
