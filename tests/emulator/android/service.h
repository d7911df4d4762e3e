// SPDX-License-Identifier: Apache-2.0
// Requests of adb users' commands (am, pm, cmd, …) to system_server. On a phone this goes by binder, which passes
// the caller's identity and its streams (frameworks/native/cmds/cmd/cmd.cpp); here by a socket that does the same.
#ifndef EMULATOR_SERVICE_H
#define EMULATOR_SERVICE_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define SERVICE_SOCKET "/dev/socket/system_server"
#define ZYGOTE_SOCKET "/dev/socket/zygote"
#define PROPERTIES "/data/property"
enum { CALL_BYTES = 8192, CALL_WORDS = 64, PROPERTY_VALUE_MAX = 92 };

struct call {
	uid_t uid;
	int words;
	char *word[CALL_WORDS + 1]; // word[0] is the verb; NULL after the last one
	FILE *out;
	FILE *err;
};

// Each returns the exit code of the command.
int ml_activity(struct call *call);
int ml_package(struct call *call);
int ml_dumpsys(struct call *call);
int ml_monkey(struct call *call);
int ml_getprop(struct call *call);
int ml_setprop(struct call *call);

// The value of a property, "" where it has none.
void ml_property(const char *name, char *value, size_t size);

// Processes of an app: their names are the package's, or begin with "package:".
pid_t ml_process(const char *name);
void ml_kill_package(const char *package);
// Asks the zygote for a process of that name; 0 where it cannot have one.
pid_t ml_start_process(const char *name);
// Gives a running process something to do: what is sent is an extra of the intent ("every=2", or "").
bool ml_deliver(pid_t pid, const char *extra);

#endif
