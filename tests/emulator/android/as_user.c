// SPDX-License-Identifier: Apache-2.0
// as_user UID COMMAND…: what `user` and `group` of an init service do. The groups of uid 2000 are adbd's, which the
// shell inherits (packages/modules/adb/daemon/main.cpp, drop_privileges).
#define _GNU_SOURCE
#include <err.h>
#include <grp.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHELL = 2000 };

int main(int argc, char **argv)
{
	// input log adb sdcard_rw sdcard_r ext_data_rw ext_obb_rw net_bt_admin net_bt inet net_bw_stats readproc uhid
	static const gid_t SHELL_GROUPS[] = {1004, 1007, 1011, 1015, 1028, 1078, 1079, 3001, 3002, 3003, 3006, 3009, 3011};
	if (argc < 3)
		errx(1, "usage: as_user UID COMMAND [ARGUMENT…]");
	uid_t uid = (uid_t)strtoul(argv[1], NULL, 10);
	size_t groups = uid == SHELL ? sizeof(SHELL_GROUPS) / sizeof(*SHELL_GROUPS) : 0;
	if (setgroups(groups, SHELL_GROUPS) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		err(1, "uid %u", uid);
	execvp(argv[2], argv + 2);
	err(127, "%s", argv[2]);
}
