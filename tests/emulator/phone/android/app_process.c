// SPDX-License-Identifier: Apache-2.0
// app_process: the zygote, and the apps that it forks. Without stdio and errno: the same source is linked against glibc
// and against bionic. Arguments as in frameworks/base/cmds/app_process/app_main.cpp:
//   -Xzygote FOLDER --zygote           serves requests for processes
//   … --application --nice-name=NAME   is an app: what a wrapper command starts (WrapperInit.java)
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_BYTES = 160, WRAP_BYTES = 256, PROPERTY_CHARS = 91, COMMAND_BYTES = 768, COMM_CHARS = 15, MILLISECONDS = 1000, EXTRA_BYTES = 512,
       STARTUP_AGENTS_API = 30, TABLE_BYTES = 16384 };
enum { AID_INET = 3003, AID_EVERYBODY = 9997 };

struct app {
	char *package;
	uid_t uid;
	bool debuggable;
	char *abi;	 // primaryCpuAbi
	char *runtime;	 // the app_process that runs it
	char *directory; // codePath
	char *library;	 // what its activity loads: a file, or one within its APK
};

static char *field(char **rest)
{
	char *start = *rest;
	*rest += strcspn(start, " ");
	if (**rest)
		*(*rest)++ = '\0';
	return start;
}

// The app of a package, or of a process "package:name", in /system/etc/apps, which tests/emulator/phone/apps.py writes.
static bool find_app(const char *name, struct app *app)
{
	static char table[TABLE_BYTES];
	size_t name_length = strcspn(name, ":");
	int file = open("/system/etc/apps", O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? 0 : read(file, table, sizeof(table) - 1);
	if (file >= 0)
		close(file);
	table[length < 0 ? 0 : length] = '\0';
	for (char *line = table, *end; (end = strchr(line, '\n')); line = end + 1) {
		char *rest = line;
		*end = '\0';
		app->package = field(&rest);
		app->uid = (uid_t)strtoul(field(&rest), NULL, 10);
		app->debuggable = *field(&rest) == '1';
		field(&rest); // whether it is profileable
		app->abi = field(&rest);
		app->runtime = field(&rest);
		app->directory = field(&rest);
		app->library = field(&rest);
		if (strlen(app->package) == name_length && !strncmp(app->package, name, name_length))
			return true;
	}
	return false;
}

static char *title; // argv[0], and the space up to the environment
static size_t title_bytes;

// AndroidRuntime::setArgv0 and SetThreadName: the end of a name is more specific than its beginning.
static void set_name(const char *name)
{
	size_t length = strnlen(name, title_bytes - 1);
	memset(title, 0, title_bytes);
	memcpy(title, name, length);
	prctl(PR_SET_NAME, length > COMM_CHARS ? name + length - COMM_CHARS : name, 0, 0, 0);
}

static void say(const char *first, const char *second)
{
	const char *texts[] = {first, second ? second : "", "\n"};
	for (size_t i = 0; i < 3; i++) {
		if (write(STDERR_FILENO, texts[i], strlen(texts[i])) < 0)
			return;
	}
}

static int made_fifo(const char *path)
{
	unlink(path);
	if (mkfifo(path, 0600))
		_exit(1);
	return open(path, O_RDWR | O_CLOEXEC);
}

static bool read_line(int fifo, char *text, size_t size)
{
	size_t length = 0;
	while (length + 1 < size && read(fifo, text + length, 1) == 1 && text[length] != '\n')
		length++;
	text[length] = '\0';
	return length + 1 < size;
}

// art/runtime/ti/agent.cc: PATH=OPTIONS. What the entry answers is not looked at.
static void attach_agent(char *path)
{
	int (*entry)(void *, char *, void *) = NULL;
	char *options = strchr(path, '=');
	if (options)
		*options++ = '\0';
	void *library = dlopen(path, RTLD_LAZY);
	void *symbol = library ? dlsym(library, "Agent_OnAttach") : NULL;
	memcpy(&entry, &symbol, sizeof(entry));
	if (entry)
		entry(NULL, options ? options : "", NULL);
	else
		say("agent: ", dlerror());
}

// frameworks/base ActivityThread.handleAttachStartupAgents, which handleBindApplication calls for a debuggable app before
// any of its code: every file of the folder, with the app's data folder as its options. Since Android 11.
static void attach_startup_agents(const struct app *app)
{
	char level[8] = "", data[NAME_BYTES + 16] = "/data/user/0/", folder[NAME_BYTES + 64] = "", agent[COMMAND_BYTES];
	int file = open("/data/property/ro.build.version.sdk", O_RDONLY | O_CLOEXEC);
	if (file >= 0 && read(file, level, sizeof(level) - 1) >= 0)
		close(file);
	strcat(data, app->package);
	strcat(strcat(folder, data), "/code_cache/startup_agents");
	DIR *listing = app->debuggable && atoi(level) >= STARTUP_AGENTS_API ? opendir(folder) : NULL;
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || strlen(entry->d_name) > NAME_BYTES)
			continue;
		strcpy(agent, folder);
		strcat(strcat(agent, "/"), entry->d_name);
		attach_agent(strcat(strcat(agent, "="), data));
	}
	if (listing)
		closedir(listing);
}

// The main thread of an app: its activity's code runs once, and again for every intent, or every so many seconds.
static void run_app(const char *name)
{
	struct app app;
	char *arguments[] = {(char *)name, NULL};
	if (!find_app(name, &app))
		_exit(1);
	char path[NAME_BYTES + 16] = "/dev/looper/";
	int looper = made_fifo(strcat(path, name));
	attach_startup_agents(&app);
	void *library = dlopen(app.library, RTLD_NOW);
	if (!library)
		say("dlopen failed: ", dlerror());
	void *symbol = library ? dlsym(library, "main") : NULL;
	int (*activity)(int, char **);
	memcpy(&activity, &symbol, sizeof(activity));
	if (!activity)
		_exit(1);
	for (int timeout_ms = -1;;) {
		char extra[EXTRA_BYTES] = "";
		activity(1, arguments);
		struct pollfd wait = {looper, POLLIN, 0};
		while (poll(&wait, 1, timeout_ms) == 1 && read_line(looper, extra, sizeof(extra)) &&
		       !strncmp(extra, "agent=", 6)) // is no reason to run the activity
			attach_agent(extra + 6);
		if (!strncmp(extra, "every=", 6))
			timeout_ms = atoi(extra + 6) * MILLISECONDS;
		else if (!strncmp(extra, "hang=", 5))
			sleep((unsigned int)atoi(extra + 5)); // an app that does not respond
	}
}

// ProcessList.startProcess: a debuggable app's own wrap.sh, below its nativeLibraryDir.
static bool own_wrapper(const struct app *app, char *command)
{
	static const char LOGGER[] = "/system/bin/logwrapper ";
	strcpy(command, LOGGER);
	strcat(command, app->directory);
	strcat(command, strcmp(app->abi, "arm64-v8a") ? "/lib/arm/wrap.sh" : "/lib/arm64/wrap.sh");
	return app->debuggable && access(command + sizeof(LOGGER) - 1, F_OK) == 0;
}

// Zygote.applyInvokeWithSystemProperty: what the property wrap.NAME says, of any app.
static bool property_wrapper(const char *name, char *command)
{
	char path[NAME_BYTES + 64] = "/data/property/wrap.";
	strcat(path, name);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? 0 : read(file, command, PROPERTY_CHARS);
	if (file >= 0)
		close(file);
	command[length < 0 ? 0 : length] = '\0';
	return *command != '\0';
}

// WrapperInit.execApplication.
static void run_wrapped(const struct app *app, const char *name, const char *wrap)
{
	char command[COMMAND_BYTES] = "";
	strcat(command, wrap);
	strcat(command, " ");
	strcat(command, app->runtime);
	strcat(command, " /system/bin --application '--nice-name=");
	strcat(command, name);
	strcat(command, "' com.android.internal.os.WrapperInit 0 29 'android.app.ActivityThread'");
	execl("/system/bin/sh", "/system/bin/sh", "-c", command, (char *)NULL);
	_exit(1);
}

// SpecializeCommon in frameworks/base/core/jni/com_android_internal_os_Zygote.cpp.
static void specialize(const struct app *app, const char *name)
{
	char wrap[WRAP_BYTES];
	gid_t groups[] = {AID_INET, AID_EVERYBODY, 40000 + app->uid};
	int null = open("/dev/null", O_RDWR);
	for (int stream = 0; stream < 3; stream++)
		dup2(null, stream);
	setpgid(0, 0);
	if (setgroups(3, groups) || setresgid(app->uid, app->uid, app->uid) || setresuid(app->uid, app->uid, app->uid))
		_exit(1);
	prctl(PR_SET_DUMPABLE, app->debuggable, 0, 0, 0); // EnableDebugger; otherwise only root may read it
	if (own_wrapper(app, wrap) || property_wrapper(name, wrap))
		run_wrapped(app, name, wrap);
	set_name(name);
	run_app(name);
}

static void serve(int requests)
{
	char name[NAME_BYTES];
	struct app app;
	if (!read_line(requests, name, sizeof(name)) || !find_app(name, &app) || fork())
		return;
	close(requests);
	signal(SIGCHLD, SIG_DFL);
	specialize(&app, name);
}

static void run_zygote(const char *program)
{
	char path[NAME_BYTES + 32] = "/dev/socket/zygote_";
	const char *own = strrchr(program, '/');
	int requests = made_fifo(strcat(path, own ? own + 1 : program));
	signal(SIGCHLD, SIG_IGN);
	set_name(strstr(program, "32") ? "zygote" : strstr(program, "bionic") ? "zygote64_bionic" : "zygote64");
	for (;;)
		serve(requests);
}

int main(int argc, char **argv)
{
	char program[NAME_BYTES] = "", name[NAME_BYTES] = "";
	bool zygote = false;
	title = argv[0];
	title_bytes = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - title);
	memcpy(program, argv[0], strnlen(argv[0], sizeof(program) - 1));
	for (int i = 1; i < argc; i++) {
		if (!strncmp(argv[i], "--nice-name=", 12))
			memcpy(name, argv[i] + 12, strnlen(argv[i] + 12, sizeof(name) - 1));
		zygote |= !strcmp(argv[i], "--zygote");
	}
	if (zygote)
		run_zygote(program);
	if (!*name)
		return 1;
	set_name(name);
	run_app(name);
}
