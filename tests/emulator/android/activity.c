// SPDX-License-Identifier: Apache-2.0
// am: the verbs that start and stop apps. Words and codes are those of frameworks/base/services/core/java/com/android/
// server/am/ActivityManagerShellCommand.java.
#include <string.h>
#include <unistd.h>

#include "apps.h"
#include "service.h"

// If a test made this file, agents are refused, as by a vendor's rule that no earlier check reveals.
#define REFUSES_AGENTS "/data/system/refuses_agents"

enum { DELIVERY_TRIES = 200, DELIVERY_PAUSE_US = 10000 };

struct intent {
	const char *action;
	const char *category;
	char package[128];
	char component[192]; // package/.Class, as toShortString has it
	bool wait;
	bool stop_first;
	bool extras;
	char extra[32]; // one that the app heeds: NAME=SECONDS
};

static void name_component(struct intent *intent, const char *text)
{
	size_t package = strcspn(text, "/");
	const char *class = text[package] ? text + package + 1 : ".MainActivity";
	snprintf(intent->package, sizeof(intent->package), "%.*s", (int)package, text);
	if (*class != '.' && !strncmp(class, intent->package, package)) // both spellings of a class are the same
		class += package;
	snprintf(intent->component, sizeof(intent->component), "%s/%s", intent->package, class);
}

static bool takes_two(const char *option)
{
	static const char *const EXTRAS[] = {"--es", "--ei", "--ez", "--el", "--ef", "-e"};
	for (size_t i = 0; i < sizeof(EXTRAS) / sizeof(*EXTRAS); i++) {
		if (!strcmp(option, EXTRAS[i]))
			return true;
	}
	return false;
}

static bool takes_one(const char *option)
{
	return !strcmp(option, "--user") || !strcmp(option, "-f") || !strcmp(option, "-d") || !strcmp(option, "-t");
}

// Reads the words of an intent; false when one is missing.
static bool parsed(struct call *call, struct intent *intent)
{
	*intent = (struct intent){0};
	for (int i = 1; i < call->words; i++) {
		const char *word = call->word[i], *next = call->word[i + 1];
		if (!strcmp(word, "-W"))
			intent->wait = true;
		else if (!strcmp(word, "-S"))
			intent->stop_first = true;
		else if (*word != '-')
			name_component(intent, word);
		else if (!strcmp(word, "-D") || !strcmp(word, "-N"))
			continue;
		else if (!next)
			return false;
		else if (!strcmp(word, "-n"))
			name_component(intent, call->word[++i]);
		else if (!strcmp(word, "-a"))
			intent->action = call->word[++i];
		else if (!strcmp(word, "-c"))
			intent->category = call->word[++i];
		else if (!strcmp(word, "-p"))
			name_component(intent, call->word[++i]);
		else if (takes_two(word) && i + 2 < call->words) {
			intent->extras = true;
			if (!strcmp(next, "every") || !strcmp(next, "hang"))
				snprintf(intent->extra, sizeof(intent->extra), "%s=%s", next, call->word[i + 2]);
			i += 2;
		} else if (takes_one(word))
			i++;
	}
	return true;
}

// Intent.toString().
static void print_intent(FILE *out, const char *before, const struct intent *intent)
{
	fprintf(out, "%sIntent {", before);
	if (intent->action)
		fprintf(out, " act=%s", intent->action);
	if (intent->category)
		fprintf(out, " cat=[%s]", intent->category);
	if (*intent->component)
		fprintf(out, " cmp=%s", intent->component);
	fprintf(out, "%s }\n", intent->extras ? " (has extras)" : "");
}

static void deliver_when_up(pid_t pid, const char *extra)
{
	for (int i = 0; i < DELIVERY_TRIES && !ml_deliver(pid, extra); i++)
		usleep(DELIVERY_PAUSE_US);
}

static void report_wait(struct call *call, const struct intent *intent, bool was_up)
{
	if (!intent->wait)
		return;
	fprintf(call->out, "Status: ok\nLaunchState: %s\nActivity: %s\nTotalTime: 1\nWaitTime: 1\nComplete\n",
		was_up ? "HOT" : "COLD", intent->component);
}

static int start_activity(struct call *call)
{
	struct intent intent;
	struct app app;
	if (!parsed(call, &intent) || (!*intent.component && !intent.action)) {
		fprintf(call->err, "Error: Argument expected after \"%s\"\n", call->word[call->words - 1]);
		return 255;
	}
	if (intent.stop_first)
		ml_kill_package(intent.package);
	print_intent(call->out, "Starting: ", &intent);
	fflush(call->out);
	if (!*intent.component) {
		print_intent(call->err, "Error: Activity not started, unable to resolve ", &intent);
		return 1;
	}
	if (!ml_find_app(intent.package, &app)) {
		fprintf(call->err, "Error type 3\nError: Activity class {%s} does not exist.\n", intent.component);
		return 1;
	}
	pid_t pid = ml_process(app.package);
	bool was_up = pid != 0;
	if (was_up) {
		fprintf(intent.wait ? call->out : call->err, "Warning: Activity not started, intent has been delivered to "
							     "currently running top-most instance.\n");
		ml_deliver(pid, intent.extra);
	} else {
		pid = ml_start_process(app.package);
		if (pid && *intent.extra)
			deliver_when_up(pid, intent.extra);
	}
	report_wait(call, &intent, was_up);
	return 0;
}

// A service of the manifest's `android:process=":remote"`: it lives in a process of its own.
static int start_service(struct call *call)
{
	struct intent intent;
	struct app app;
	char name[160];
	if (!parsed(call, &intent))
		return 255;
	print_intent(call->out, "Starting service: ", &intent);
	fflush(call->out);
	if (!ml_find_app(intent.package, &app)) {
		fprintf(call->err, "Error: Not found; no service started.\n");
		return 255;
	}
	snprintf(name, sizeof(name), "%s:remote", app.package);
	pid_t pid = ml_process(name);
	if (pid)
		ml_deliver(pid, intent.extra);
	else
		ml_start_process(name);
	return 0;
}

static int force_stop(struct call *call)
{
	const char *package = NULL;
	for (int i = 1; i < call->words; i++) {
		if (!strcmp(call->word[i], "--user"))
			i++;
		else
			package = call->word[i];
	}
	if (!package) {
		fprintf(call->err, "\nException occurred while executing '%s':\n"
				   "java.lang.IllegalArgumentException: Argument expected after \"%s\"\n", call->word[0], call->word[0]);
		return 255;
	}
	ml_kill_package(package); // an unknown one is no error
	return 0;
}

static int refuse_agent(struct call *call, const char *reason, const char *name)
{
	fprintf(call->err, "\nException occurred while executing 'attach-agent':\n%s%s\n", reason, name);
	return 255;
}

// ActivityManagerService.attachAgent: a JVMTI agent for a debuggable app; its main thread loads it (ActivityThread).
static int attach_agent(struct call *call)
{
	char extra[CALL_BYTES];
	struct app app;
	if (call->words < 3)
		return refuse_agent(call, "java.lang.IllegalArgumentException: Argument expected after ", call->word[call->words - 1]);
	const char *name = call->word[1];
	pid_t pid = ml_process(name);
	if (!pid || !ml_find_app(name, &app))
		return refuse_agent(call, "java.lang.IllegalArgumentException: Unknown process: ", name);
	if (!app.debuggable)
		return refuse_agent(call, "java.lang.SecurityException: Process not debuggable: ", app.package);
	if (access(REFUSES_AGENTS, F_OK) == 0)
		return refuse_agent(call, "java.lang.SecurityException: Not allowed to attach an agent: ", name);
	snprintf(extra, sizeof(extra), "agent=%s", call->word[2]);
	ml_deliver(pid, extra);
	return 0;
}

int ml_activity(struct call *call)
{
	const char *verb = call->words ? call->word[0] : "";
	if (!strcmp(verb, "start") || !strcmp(verb, "start-activity"))
		return start_activity(call);
	if (!strcmp(verb, "startservice") || !strcmp(verb, "start-service") || !strcmp(verb, "start-foreground-service"))
		return start_service(call);
	if (!strcmp(verb, "force-stop") || !strcmp(verb, "kill"))
		return force_stop(call);
	if (!strcmp(verb, "attach-agent"))
		return attach_agent(call);
	if (!strcmp(verb, "get-current-user")) {
		fprintf(call->out, "0\n");
		return 0;
	}
	fprintf(call->out, "Unknown command: %s\n", verb);
	return 255;
}
