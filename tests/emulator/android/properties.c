// SPDX-License-Identifier: Apache-2.0
// System properties: one file each. Messages are those of system/core/toolbox/{get,set}prop.cpp.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps.h"
#include "service.h"

void ml_property(const char *name, char *value, size_t size)
{
	char path[512];
	snprintf(path, sizeof(path), PROPERTIES "/%s", name);
	FILE *file = strchr(name, '/') ? NULL : fopen(path, "r");
	size_t length = file ? fread(value, 1, size - 1, file) : 0;
	if (file)
		fclose(file);
	value[length] = '\0';
}

static int visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void list(FILE *out)
{
	struct dirent **names;
	char value[CALL_BYTES];
	int count = scandir(PROPERTIES, &names, visible, alphasort);
	for (int i = 0; i < count; i++) {
		ml_property(names[i]->d_name, value, sizeof(value));
		fprintf(out, "[%s]: [%s]\n", names[i]->d_name, value);
		free(names[i]);
	}
	if (count >= 0)
		free(names);
}

int ml_getprop(struct call *call)
{
	char value[CALL_BYTES];
	if (call->words == 0) {
		list(call->out);
		return 0;
	}
	ml_property(call->word[0], value, sizeof(value));
	fprintf(call->out, "%s\n", *value || call->words < 2 ? value : call->word[1]);
	return 0;
}

static bool well_named(struct call *call, const char *name)
{
	if (*name == '.' || (*name && name[strlen(name) - 1] == '.')) {
		fprintf(call->err, "Property names must not start or end with a '.'\n");
		return false;
	}
	if (strstr(name, "..")) {
		fprintf(call->err, "'..' is not allowed in a property name\n");
		return false;
	}
	for (const char *c = name; *c; c++) {
		if (!isalnum((unsigned char)*c) && !strchr(":@_.-", *c)) {
			fprintf(call->err, "Invalid character '%c' in name '%s'\n", *c, name);
			return false;
		}
	}
	return *name != '\0';
}

// system/sepolicy/private/property_contexts and shell.te: what the shell may set. wrap.* is root's.
static bool permitted(uid_t uid, const char *name)
{
	static const char *const SHELL_MAY[] = {"debug.", "log.", "persist.log.", "sys.powerctl", "security.perf_harden"};
	if (uid == AID_ROOT)
		return true;
	for (size_t i = 0; uid == AID_SHELL && i < sizeof(SHELL_MAY) / sizeof(*SHELL_MAY); i++) {
		if (!strncmp(name, SHELL_MAY[i], strlen(SHELL_MAY[i])))
			return true;
	}
	return false;
}

static bool stored(const char *name, const char *value)
{
	char path[512];
	snprintf(path, sizeof(path), PROPERTIES "/%s", name);
	if (!strncmp(name, "ro.", 3) && access(path, F_OK) == 0) // written once
		return false;
	FILE *file = fopen(path, "w");
	if (!file)
		return false;
	fputs(value, file);
	return fclose(file) == 0;
}

int ml_setprop(struct call *call)
{
	if (call->words != 2) {
		fprintf(call->out, "usage: setprop NAME VALUE\n\nSets an Android system property.\n");
		return 1;
	}
	const char *name = call->word[0], *value = call->word[1];
	if (!well_named(call, name))
		return 1;
	if (strlen(value) >= PROPERTY_VALUE_MAX) {
		fprintf(call->err, "Value '%s' is too long, %zu bytes vs a max of %d\n", value, strlen(value), PROPERTY_VALUE_MAX);
		return 1;
	}
	if (!permitted(call->uid, name) || !stored(name, value)) {
		fprintf(call->err, "Failed to set property '%s' to '%s'.\nSee dmesg for error reason.\n", name, value);
		return 1;
	}
	return 0;
}
