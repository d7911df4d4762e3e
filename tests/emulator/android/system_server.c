// SPDX-License-Identifier: Apache-2.0
// system_server: answers am, pm, cmd, dumpsys, monkey, getprop and setprop, one call at a time.
#define _GNU_SOURCE
#include <err.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "service.h"

enum { STREAMS = 3 };

static const struct service {
	const char *name;
	int (*answer)(struct call *);
} SERVICES[] = {
	{"activity", ml_activity}, {"package", ml_package}, {"dumpsys", ml_dumpsys},
	{"monkey", ml_monkey},	   {"getprop", ml_getprop}, {"setprop", ml_setprop},
};

static int listening(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SERVICE_SOCKET};
	int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (server < 0 || bind(server, (struct sockaddr *)&address, sizeof(address)) || listen(server, 16))
		err(1, "%s", SERVICE_SOCKET);
	if (chmod(SERVICE_SOCKET, 0666)) // the service itself refuses what a caller may not do
		err(1, "%s", SERVICE_SOCKET);
	return server;
}

// Reads one call: its words, each ended by NUL, with the caller's three streams.
static ssize_t received(int client, char *words, size_t size, int streams[STREAMS])
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(STREAMS * sizeof(int))];
	} control;
	struct iovec part = {words, size};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t length = recvmsg(client, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *rights = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (!rights || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(STREAMS * sizeof(int)))
		return -1;
	memcpy(streams, CMSG_DATA(rights), STREAMS * sizeof(int));
	return length;
}

static void split(char *words, ssize_t length, struct call *call)
{
	for (char *word = words; word < words + length && call->words < CALL_WORDS; word += strlen(word) + 1)
		call->word[call->words++] = word;
}

static int dispatch(const char *service, struct call *call)
{
	for (size_t i = 0; i < sizeof(SERVICES) / sizeof(*SERVICES); i++) {
		if (!strcmp(SERVICES[i].name, service))
			return SERVICES[i].answer(call);
	}
	fprintf(call->err, "cmd: Can't find service: %s\n", service); // frameworks/native/cmds/cmd/cmd.cpp
	return 20;
}

static void serve(int client)
{
	char words[CALL_BYTES + 1] = "";
	int streams[STREAMS];
	struct call call = {0};
	struct ucred peer;
	socklen_t size = sizeof(peer);
	ssize_t length = received(client, words, CALL_BYTES, streams);
	if (length < 0 || getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return;
	split(words + strlen(words) + 1, length - (ssize_t)strlen(words) - 1, &call);
	call.uid = peer.uid;
	close(streams[0]);
	call.out = fdopen(streams[1], "w");
	call.err = fdopen(streams[2], "w");
	int code = call.out && call.err ? dispatch(words, &call) : 1;
	fclose(call.out);
	fclose(call.err);
	send(client, &code, sizeof(code), MSG_NOSIGNAL);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	int server = listening();
	for (;;) {
		int client = accept4(server, NULL, NULL, SOCK_CLOEXEC);
		if (client < 0)
			continue;
		serve(client);
		close(client);
	}
}
