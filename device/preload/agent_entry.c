// SPDX-License-Identifier: Apache-2.0
/*
 * The entry points that Android's runtime offers for debuggable apps; nothing of JVMTI is used.
 *   `cmd activity attach-agent PROCESS PATH=OPTIONS` (API 26) loads the library as a JVMTI agent and calls
 *       Agent_OnAttach() on the app's main thread, at a second attach again. Source: AOSP art/runtime/ti/agent.cc.
 *   A file in DATA/code_cache/startup_agents (API 30) is loaded when a process of the app starts, before its code runs.
 *       OPTIONS is the data folder. Source: frameworks/base ActivityThread.handleAttachStartupAgents.
 */
#include "attach.h"
#include "preload/freestanding/bytes.h"
#include "preload/freestanding/syscalls.h"

#define JNI_OK 0 /* on any other value the runtime loads the agent again */
#define PATH_BYTES 512

/* Below the data folder. Not in startup_agents itself, where the runtime takes every file for an agent. */
#define SESSION_FILE "/code_cache/memleak-android.session"

int Agent_OnAttach(void *vm, char *options, void *reserved) __attribute__((visibility("default")));

/* Attaches by the line that the session left for starting processes, if there is one. */
static void attach_by_file(const char *folder)
{
	char path[PATH_BYTES], line[ML_ATTACH_LINE_MAX + 1];
	size_t length = ml_length(folder);
	long n;

	if (length + sizeof(SESSION_FILE) > sizeof(path))
		return;
	ml_copy(path, folder, length);
	ml_copy(path + length, SESSION_FILE, sizeof(SESSION_FILE));
	n = ml_read_file(path, line, sizeof(line) - 1);
	if (n < 0)
		return;
	while (n > 0 && line[n - 1] == '\n')
		n--;
	line[n > 0 ? n : 0] = '\0';
	memleak_attach(line);
}

/* options: the line for memleak_attach(), "detach", or the app's data folder. */
int Agent_OnAttach(void *vm, char *options, void *reserved)
{
	(void)vm;
	(void)reserved;
	if (options && *options == '/')
		attach_by_file(options);
	else if (options && ml_is_same_text(options, "detach"))
		memleak_detach();
	else
		memleak_attach(options);
	return JNI_OK;
}
