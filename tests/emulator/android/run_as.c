// SPDX-License-Identifier: Apache-2.0
// run-as, in the order and with the words of system/core/run-as/run-as.cpp. Set-user-id here; a phone's has capabilities.
#define _GNU_SOURCE
#include <err.h>
#include <grp.h>
#include <paths.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps.h"

enum { USER_OFFSET = 100000 };

static void become(const struct app *app, int user)
{
	char directory[256], name[32];
	uid_t uid = (uid_t)(user * USER_OFFSET) + app->uid;
	snprintf(directory, sizeof(directory), "/data/user/%d/%s", user, app->package);
	snprintf(name, sizeof(name), "u%d_a%u", user, app->uid % USER_OFFSET - 10000);
	if (access(directory, F_OK))
		err(1, "couldn't stat %s", directory);
	if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) // groups stay: minijail_keep_supplementary_gids
		err(1, "uid %u", uid);
	if (chdir(directory))
		err(1, "couldn't chdir to package's data directory");
	setenv("HOME", directory, 1);
	setenv("LOGNAME", name, 1);
	setenv("USER", name, 1);
	setenv("SHELL", "/system/bin/sh", 1);
	unsetenv("IFS");
}

int main(int argc, char **argv)
{
	struct app app;
	int command = 2, user = 0;
	if (argc < 2)
		errx(1, "usage: run-as <package-name> [--user <uid>] <command> [<args>]\n");
	if (getuid() != AID_SHELL && getuid() != AID_ROOT)
		errx(1, "only 'shell' or 'root' users can run this program");
	if (argc >= 4 && !strcmp(argv[2], "--user")) {
		user = atoi(argv[3]);
		if (user < 0)
			errx(1, "negative user id: %d", user);
		command += 2;
	}
	if (strchr(argv[1], ':') || !ml_find_app(argv[1], &app))
		errx(1, "unknown package: %s", argv[1]);
	if (!app.debuggable)
		errx(1, "package not debuggable: %s", argv[1]);
	become(&app, user);
	if (argc > command) {
		execvp(argv[command], argv + command);
		err(1, "exec failed for %s", argv[command]);
	}
	execl("/system/bin/sh", "sh", (char *)NULL);
	err(1, "exec failed");
}
