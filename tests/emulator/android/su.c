// SPDX-License-Identifier: Apache-2.0
// su of userdebug builds: su [WHO [COMMAND…]] (system/extras/su/su.cpp). By the name su_c it takes -c COMMAND too, as the
// su of rooted user builds does (Magisk, native/src/core/su).
#define _GNU_SOURCE
#include <ctype.h>
#include <err.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps.h"

static uid_t user(const char *name)
{
	if (!strcmp(name, "root"))
		return AID_ROOT;
	if (!strcmp(name, "shell"))
		return AID_SHELL;
	if (!strcmp(name, "system"))
		return AID_SYSTEM;
	if (!isdigit((unsigned char)*name))
		errx(1, "invalid uid/gid '%s'", name);
	return (uid_t)strtoul(name, NULL, 10);
}

int main(int argc, char **argv)
{
	uid_t uid = AID_ROOT;
	char *shell[] = {"/system/bin/sh", "-c", NULL, NULL};
	char **command = argv + 1;
	if (getuid() != AID_ROOT && getuid() != AID_SHELL)
		errx(1, "not allowed");
	if (argc > 1 && argv[1][0] != '-')
		uid = user(*command++);
	if (*command && !strcmp(*command, "-c") && access("/system/bin/su_c", F_OK) == 0) {
		shell[2] = command[1];
		command = shell;
	} else if (*command && **command == '-') {
		errx(1, "invalid uid/gid '%s'", *command);
	}
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		err(1, "setuid failed");
	if (!*command) {
		shell[1] = NULL;
		command = shell;
	}
	execvp(command[0], command);
	err(127, "failed to exec %s", command[0]);
}
