// SPDX-License-Identifier: Apache-2.0
// su of userdebug builds: su [WHO [COMMAND…]] (system/extras/su/su.cpp). By another name on every machine: what `user` of
// an init service does, and run-as.
#define _GNU_SOURCE
#include <ctype.h>
#include <err.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOT = 0, SHELL = 2000 };

// Groups of the shell are adbd's: input log adb sdcard_rw sdcard_r ext_data_rw ext_obb_rw net_bt_admin net_bt inet
// net_bw_stats readproc uhid (packages/modules/adb/daemon/main.cpp, drop_privileges). An app by run-as keeps them.
static const gid_t SHELL_GROUPS[] = {1004, 1007, 1011, 1015, 1028, 1078, 1079, 3001, 3002, 3003, 3006, 3009, 3011};

int main(int argc, char **argv)
{
	char *shell[] = {"/system/bin/sh", NULL};
	if (getuid() != ROOT && getuid() != SHELL)
		errx(1, "not allowed");
	if (argc > 1 && !isdigit((unsigned char)*argv[1]) && strcmp(argv[1], "root"))
		errx(1, "invalid uid/gid '%s'", argv[1]);
	uid_t uid = argc > 1 ? (uid_t)strtoul(argv[1], NULL, 10) : ROOT; // 0 for "root", too
	char **command = argc > 2 ? argv + 2 : shell;
	size_t groups = uid == ROOT ? 0 : sizeof(SHELL_GROUPS) / sizeof(*SHELL_GROUPS);
	if (setgroups(groups, SHELL_GROUPS) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		err(1, "setuid failed");
	execvp(command[0], command);
	err(127, "failed to exec %s", command[0]);
}
