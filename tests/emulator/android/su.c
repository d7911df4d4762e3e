// SPDX-License-Identifier: Apache-2.0
// su of userdebug builds: su [WHO [COMMAND…]] (system/extras/su/su.cpp). With /system/bin/su_c beside it, the su of rooted
// user builds: su [WHO] [-c COMMAND], all further words are the shell's (Magisk, native/src/core/su).
#define _GNU_SOURCE
#include <ctype.h>
#include <err.h>
#include <grp.h>
#include <stdbool.h>
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
	char *words[64] = {"/system/bin/sh"};
	char **command = argv + 1;
	bool rooted = access("/system/bin/su_c", F_OK) == 0;
	if (getuid() != AID_ROOT && getuid() != AID_SHELL)
		errx(1, "not allowed");
	if (argc > 1 && (argv[1][0] != '-' || !rooted))
		uid = user(*command++);
	if (rooted || !*command) {
		for (size_t i = 1; i < 63 && *command; i++)
			words[i] = *command++;
		command = words;
	}
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		err(1, "setuid failed");
	execvp(command[0], command);
	err(127, "failed to exec %s", command[0]);
}
