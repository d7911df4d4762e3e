// SPDX-License-Identifier: Apache-2.0
// pm and dumpsys package: what is installed. Words and codes are those of frameworks/base/services/core/java/com/
// android/server/pm/PackageManagerShellCommand.java and Settings.java (dumpPackageLPr).
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps.h"
#include "service.h"

struct listing {
	struct call *call;
	const char *filter;
	bool file, uid, version, system_only;
};

static bool list_one(const struct app *app, void *argument)
{
	const struct listing *listing = argument;
	FILE *out = listing->call->out;
	if ((listing->filter && !strstr(app->package, listing->filter)) || listing->system_only)
		return false;
	fprintf(out, "package:");
	if (listing->file)
		fprintf(out, "%s/base.apk=", app->directory);
	fprintf(out, "%s", app->package);
	if (listing->version)
		fprintf(out, " versionCode:1");
	if (listing->uid)
		fprintf(out, " uid:%u", app->uid);
	fprintf(out, "\n");
	return false;
}

static int list(struct call *call)
{
	struct listing listing = {.call = call};
	if (call->words > 1 && !strcmp(call->word[1], "users")) {
		fprintf(call->out, "Users:\n\tUserInfo{0:Owner:c13} running\n");
		return 0;
	}
	for (int i = 2; i < call->words; i++) {
		const char *word = call->word[i];
		if (!strcmp(word, "-f"))
			listing.file = true;
		else if (!strcmp(word, "-U"))
			listing.uid = true;
		else if (!strcmp(word, "-s"))
			listing.system_only = true;
		else if (!strcmp(word, "--show-versioncode"))
			listing.version = true;
		else if (!strcmp(word, "--user") || !strcmp(word, "--uid"))
			i++;
		else if (*word != '-')
			listing.filter = word;
	}
	ml_each_app(list_one, &listing);
	return 0;
}

// The word after the verb and its options.
static const char *operand(const struct call *call)
{
	for (int i = 1; i < call->words; i++) {
		const char *word = call->word[i];
		if (!strcmp(word, "--user") || !strcmp(word, "-a") || !strcmp(word, "-c"))
			i++;
		else if (*word != '-')
			return word;
	}
	return "";
}

static int path(struct call *call)
{
	struct app app;
	if (!ml_find_app(operand(call), &app))
		return 1;
	fprintf(call->out, "package:%s/base.apk\n", app.directory);
	return 0;
}

static int resolve_activity(struct call *call)
{
	struct app app;
	if (!ml_find_app(operand(call), &app)) {
		fprintf(call->out, "No activity found\n");
		return 0;
	}
	fprintf(call->out, "priority=0 preferredOrder=0 match=0x108000 specificIndex=-1 isDefault=false\n");
	fprintf(call->out, "%s/.MainActivity\n", app.package);
	return 0;
}

static int dump(struct call *call, const char *package)
{
	struct app app;
	if (!ml_find_app(package, &app)) {
		fprintf(call->out, "Unable to find package: %s\n", package);
		return 0;
	}
	fprintf(call->out, "Packages:\n  Package [%s] (%x):\n    userId=%u\n    pkg=Package{%x %s}\n", app.package, app.uid * 7,
		app.uid, app.uid * 5, app.package);
	fprintf(call->out, "    codePath=%s\n    resourcePath=%s\n    legacyNativeLibraryDir=%s/lib\n", app.directory,
		app.directory, app.directory);
	fprintf(call->out, "    primaryCpuAbi=%s\n    secondaryCpuAbi=null\n", app.abi);
	fprintf(call->out, "    versionCode=1 minSdk=23 targetSdk=29\n    versionName=1.0\n    splits=[base]\n");
	fprintf(call->out, "    apkSigningVersion=2\n    applicationInfo=ApplicationInfo{%x %s}\n", app.uid * 3, app.package);
	fprintf(call->out, "    flags=[ %sHAS_CODE ALLOW_CLEAR_USER_DATA ]\n", app.debuggable ? "DEBUGGABLE " : "");
	fprintf(call->out, "    privateFlags=[ PRIVATE_FLAG_ACTIVITIES_RESIZE_MODE_RESIZEABLE_VIA_SDK_VERSION%s ]\n",
		app.profileable ? " PROFILEABLE_BY_SHELL" : "");
	fprintf(call->out, "    dataDir=/data/user/0/%s\n", app.package);
	fprintf(call->out, "    User 0: ceDataInode=1 installed=true hidden=false suspended=false stopped=%s enabled=0\n",
		ml_process(app.package) ? "false" : "true");
	return 0;
}

int ml_package(struct call *call)
{
	const char *verb = call->words ? call->word[0] : "";
	if (!strcmp(verb, "list"))
		return list(call);
	if (!strcmp(verb, "path"))
		return path(call);
	if (!strcmp(verb, "dump"))
		return dump(call, operand(call));
	if (!strcmp(verb, "resolve-activity"))
		return resolve_activity(call);
	fprintf(call->out, "Unknown command: %s\n", verb);
	return 255;
}

// ActivityManagerService.dumpApplicationMemoryUsage(), of the words of which only a process id is understood, and
// ActivityThread.dumpMemInfoTable(): as of an app of which drivers count graphics memory.
static int meminfo(struct call *call, const char *word)
{
	char path[64];
	struct stat process;
	snprintf(path, sizeof(path), "/proc/%d", atoi(word));
	if (atoi(word) < 1 || stat(path, &process) || process.st_uid < 10000) {
		fprintf(call->out, "No process found for: %s\n", word);
		return 0;
	}
	fprintf(call->out, "Applications Memory Usage (in Kilobytes):\nUptime: 4711 Realtime: 4711\n\n** MEMINFO in pid %d [app] **\n", atoi(word));
	fprintf(call->out, "                   Pss  Private  Private  SwapPss      Rss\n                 Total    Dirty    Clean    Dirty    Total\n");
	fprintf(call->out, "                ------   ------   ------   ------   ------\n");
	fprintf(call->out, "  Native Heap     5005     5000        0        0     5010\n   EGL mtrack    10004    10004        0        0    10004\n");
	fprintf(call->out, "    GL mtrack      307      307        0        0      307\n        TOTAL    15316    15311        0        0    15321\n");
	return 0;
}

// frameworks/native/cmds/dumpsys: a missing service is reported and is not an error.
int ml_dumpsys(struct call *call)
{
	if (call->words > 0 && !strcmp(call->word[0], "package"))
		return dump(call, operand(call));
	if (call->words > 0 && !strcmp(call->word[0], "meminfo"))
		return meminfo(call, operand(call));
	fprintf(call->err, "Can't find service: %s\n", call->words ? call->word[0] : "");
	return 0;
}

// development/cmds/monkey/src/com/android/commands/monkey/Monkey.java, for "-p PACKAGE … COUNT".
int ml_monkey(struct call *call)
{
	struct app app;
	const char *package = "";
	for (int i = 0; i + 1 < call->words; i++) {
		if (!strcmp(call->word[i], "-p"))
			package = call->word[i + 1];
	}
	if (!ml_find_app(package, &app)) {
		fprintf(call->out, "** No activities found to run, monkey aborted.\n");
		return 252;
	}
	pid_t pid = ml_process(app.package);
	if (pid)
		ml_deliver(pid, "");
	else
		ml_start_process(app.package);
	fprintf(call->out, "Events injected: 1\n## Network stats: elapsed time=8ms (0ms mobile, 0ms wifi, 8ms not connected)\n");
	return 0;
}
