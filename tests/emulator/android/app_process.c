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
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps.h"

enum { NAME_BYTES = 160, WRAP_BYTES = 256, PROPERTY_CHARS = 91, COMMAND_BYTES = 768, COMM_CHARS = 15, MILLISECONDS = 1000, EXTRA_BYTES = 512, STARTUP_AGENTS_API = 30 };

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

static int bound(int kind, const char *path, size_t length)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int server = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
	memcpy(address.sun_path, path, length);
	if (bind(server, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)))
		_exit(1);
	return server;
}

static int looper_socket(void)
{
	char name[32] = "\0looper.";
	char digits[12];
	size_t length = 8, count = 0;
	for (pid_t pid = getpid(); pid; pid /= 10)
		digits[count++] = (char)('0' + pid % 10);
	while (count)
		name[length++] = digits[--count];
	return bound(SOCK_DGRAM, name, length);
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
	if (!ml_find_app(name, &app))
		_exit(1);
	int looper = looper_socket();
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
		while (poll(&wait, 1, timeout_ms) == 1 && recv(looper, extra, sizeof(extra) - 1, 0) > 0 &&
		       !strncmp(extra, "agent=", 6)) { // is no reason to run the activity
			attach_agent(extra + 6);
			memset(extra, 0, sizeof(extra));
		}
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

static void serve(int server)
{
	char name[NAME_BYTES] = "";
	struct app app;
	pid_t pid = 0;
	int client = accept(server, NULL, NULL);
	if (client < 0 || recv(client, name, sizeof(name) - 1, 0) <= 0 || !ml_find_app(name, &app)) {
		close(client);
		return;
	}
	pid = fork();
	if (pid == 0) {
		close(client);
		close(server);
		signal(SIGCHLD, SIG_DFL);
		specialize(&app, name);
	}
	send(client, &pid, sizeof(pid), MSG_NOSIGNAL);
	close(client);
}

static void run_zygote(const char *program)
{
	char path[108] = "/dev/socket/zygote_";
	const char *own = strrchr(program, '/');
	strcat(path, own ? own + 1 : program);
	int server = bound(SOCK_SEQPACKET, path, strlen(path));
	chmod(path, 0660);
	if (listen(server, 16))
		_exit(1);
	signal(SIGCHLD, SIG_IGN);
	set_name(strstr(program, "32") ? "zygote" : strstr(program, "bionic") ? "zygote64_bionic" : "zygote64");
	for (;;)
		serve(server);
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
