// SPDX-License-Identifier: Apache-2.0
// The installed apps: /system/etc/apps, one a line, as tests/emulator/apps.py writes it.
#ifndef EMULATOR_APPS_H
#define EMULATOR_APPS_H

#include <stdbool.h>
#include <sys/types.h>

enum { AID_ROOT = 0, AID_SYSTEM = 1000, AID_SHELL = 2000, AID_INET = 3003, AID_EVERYBODY = 9997 };

struct app {
	char package[128];
	uid_t uid;
	bool debuggable;
	bool profileable;
	char abi[16];	     // primaryCpuAbi
	char runtime[128];   // the app_process that runs it
	char directory[192]; // codePath
	char library[192];   // what its activity loads: a file, or one within its APK
};

// Calls `seen` for every app until it returns true; says whether one did.
bool ml_each_app(bool (*seen)(const struct app *, void *), void *argument);
// The app of a package, or of a process "package:name".
bool ml_find_app(const char *name, struct app *app);

#endif
