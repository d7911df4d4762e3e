// SPDX-License-Identifier: Apache-2.0
// cmd SERVICE WORDS…; by other names: am, pm, dumpsys, monkey, getprop, setprop. Passes its words and its streams on.
#include <err.h>
#include <libgen.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "service.h"

static size_t append(char *words, size_t length, const char *word)
{
	size_t size = strlen(word) + 1;
	if (length + size > CALL_BYTES)
		errx(1, "too many words");
	memcpy(words + length, word, size);
	return length + size;
}

static int connected(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SERVICE_SOCKET};
	int server = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof(address)))
		errx(20, "Unable to get default service manager!");
	return server;
}

static void ask(int server, char *words, size_t length)
{
	const int streams[] = {0, 1, 2};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(streams))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof(streams)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	memcpy(CMSG_DATA(&control.header), streams, sizeof(streams));
	struct iovec part = {words, length};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	if (sendmsg(server, &message, 0) < 0)
		err(1, "system_server");
}

int main(int argc, char **argv)
{
	char words[CALL_BYTES];
	const char *name = basename(argv[0]);
	int first = 1;
	if (!strcmp(name, "am"))
		name = "activity";
	else if (!strcmp(name, "pm"))
		name = "package";
	else if (!strcmp(name, "cmd") && argc > 1)
		name = argv[first++];
	else if (!strcmp(name, "cmd"))
		errx(20, "No service specified; use -l to list all services");
	size_t length = append(words, 0, name);
	for (int i = first; i < argc; i++)
		length = append(words, length, argv[i]);
	int server = connected();
	ask(server, words, length);
	int code;
	if (recv(server, &code, sizeof(code), 0) != sizeof(code))
		errx(1, "system_server died");
	return code;
}
