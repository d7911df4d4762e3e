// SPDX-License-Identifier: Apache-2.0
// No stdio, no errno: this file is part of app_process too, which runs on glibc and on bionic.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps.h"

enum { TABLE_BYTES = 16384 };

static char *field(char **rest)
{
	char *start = *rest;
	char *end = strchr(start, ' ');
	if (end) {
		*end = '\0';
		*rest = end + 1;
	} else {
		*rest = start + strlen(start);
	}
	return start;
}

static void keep(char *into, size_t size, const char *text)
{
	size_t length = strnlen(text, size - 1);
	memcpy(into, text, length);
	into[length] = '\0';
}

static struct app parsed(char *line)
{
	struct app app;
	keep(app.package, sizeof(app.package), field(&line));
	app.uid = (uid_t)strtoul(field(&line), NULL, 10);
	app.debuggable = *field(&line) == '1';
	app.profileable = *field(&line) == '1';
	keep(app.abi, sizeof(app.abi), field(&line));
	keep(app.runtime, sizeof(app.runtime), field(&line));
	keep(app.directory, sizeof(app.directory), field(&line));
	keep(app.library, sizeof(app.library), field(&line));
	return app;
}

bool ml_each_app(bool (*seen)(const struct app *, void *), void *argument)
{
	char table[TABLE_BYTES];
	int file = open("/system/etc/apps", O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? 0 : read(file, table, sizeof(table) - 1);
	if (file >= 0)
		close(file);
	table[length < 0 ? 0 : length] = '\0';
	for (char *line = table, *end; (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		struct app app = parsed(line);
		if (seen(&app, argument))
			return true;
	}
	return false;
}

struct search {
	const char *name;
	size_t length;
	struct app *found;
};

static bool matches(const struct app *app, void *argument)
{
	struct search *search = argument;
	if (strlen(app->package) != search->length || strncmp(app->package, search->name, search->length))
		return false;
	*search->found = *app;
	return true;
}

bool ml_find_app(const char *name, struct app *app)
{
	struct search search = {name, strcspn(name, ":"), app};
	return ml_each_app(matches, &search);
}
