/*
 * Operations on file descriptors at random, in every way that libc has: SEED NUMBER MOST. It keeps a book of which function gave each
 * that is open, holds it against /proc/self/fd in the end, and prints the book's sums: `FUNCTION COUNT` a line.
 */
#include "../../../support/programs/libc.h"
#include <dirent.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#define OPEN_MAX 600
#define RECEIVED_MAX 40
#define OR_DIE(call)                                                                                              \
	do                                                                                                        \
		if (!(call)) {                                                                                    \
			perror(#call);                                                                            \
			abort();                                                                                  \
		}                                                                                                 \
	while (0)

static const char *book[1024]; /* by descriptor: the function it came by; NULL = closed, or none of ours */
static unsigned long state;
static unsigned most; /* descriptors of a message */
static int first; /* lower ones were there before */

static unsigned below(unsigned n)
{
	state = state * 6364136223846793005ul + 1442695040888963407ul;
	return (unsigned)(state >> 33) % n;
}

static void enter(int fd, const char *function)
{
	if (fd < 0)
		return; /* a machine may lack what it asks for: then it failed, which is a case too */
	OR_DIE(fd >= first && fd < 1024 && !book[fd]);
	book[fd] = function;
}

static int some_open(void)
{
	for (int i = 0, fd = first + (int)below(1024); i < 1024; i++, fd++)
		if (book[fd % 1024])
			return fd % 1024;
	return -1;
}

static void close_it(int fd)
{
	book[fd] = NULL;
}

static void open_any(void)
{
	char name[] = "/tmp/descriptorsXXXXXX";
	sigset_t set;
	int fd;

	sigemptyset(&set);
	switch (below(18)) {
	case 0: enter(open("/dev/null", O_RDONLY | O_CLOEXEC), "open"); break;
	case 1: enter(openat(AT_FDCWD, "/dev/null", O_RDONLY), "openat"); break;
	case 2: enter(open("/nowhere", O_RDONLY), "open"); break;
	case 3: enter(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"); break;
	case 4: enter(eventfd(0, 0), "eventfd"); break;
	case 5: enter(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"); break;
	case 6: enter(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create"); break;
	case 7: enter(inotify_init1(0), "inotify_init1"); break;
	case 8: enter(fanotify_init(FAN_CLASS_NOTIF, O_RDONLY), "fanotify_init"); break;
	case 9: enter(memfd_create("random", MFD_CLOEXEC), "memfd_create"); break;
	case 10:
		if ((fd = mkstemp(name)) >= 0)
			unlink(name);
		enter(fd, "mkstemp");
		break;
	case 11: enter(pidfd_open(getpid(), 0), "pidfd_open"); break;
	case 12: enter(signalfd(-1, &set, SFD_CLOEXEC), "signalfd"); break;
	case 13: enter((int)syscall(SYS_userfaultfd, O_CLOEXEC | 1), "syscall"); break;
	case 14: enter((int)syscall(SYS_pidfd_open, getpid(), 0), "syscall"); break;
	case 15:
		if (SYS_openat == 257) /* only where the set knows the number */
			enter((int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY), "syscall");
		break;
	case 16: enter(getpt(), "getpt"); break;
	default: {
		char parameters[120] = "";

		enter((int)syscall(SYS_io_uring_setup, 4, parameters), "syscall");
	}
	}
}

static void open_two(void)
{
	int fds[2];

	switch (below(3)) {
	case 0: OR_DIE(!pipe(fds)); break;
	case 1:
		OR_DIE(!pipe2(fds, O_CLOEXEC));
		enter(fds[0], "pipe2");
		enter(fds[1], "pipe2");
		return;
	default:
		OR_DIE(!socketpair(AF_UNIX, SOCK_DGRAM, 0, fds));
		enter(fds[0], "socketpair");
		enter(fds[1], "socketpair");
		return;
	}
	enter(fds[0], "pipe");
	enter(fds[1], "pipe");
}

static void accept_one(int flags)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t bytes = sizeof(address.sun_family);
	int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);

	OR_DIE(!bind(server, (struct sockaddr *)&address, bytes) && !listen(server, 1)); /* a name of the kernel's */
	bytes = sizeof(address);
	OR_DIE(!getsockname(server, (struct sockaddr *)&address, &bytes) && !connect(client, (struct sockaddr *)&address, bytes));
	enter(flags < 0 ? accept(server, NULL, NULL) : accept4(server, NULL, NULL, flags), flags < 0 ? "accept" : "accept4");
	OR_DIE(!close(server) && !close(client));
}

static void duplicate(int fd)
{
	int at;

	switch (below(5)) {
	case 0: enter(dup(fd), "dup"); break;
	case 1: enter(fcntl(fd, F_DUPFD, (int)below(400)), "fcntl"); break;
	case 2: enter(fcntl(fd, F_DUPFD_CLOEXEC, (int)below(400)), "fcntl"); break;
	case 3:
		at = first + (int)below(600);
		if (at != fd) {
			OR_DIE(dup2(fd, at) == at);
			book[at] = "dup2";
		}
		break;
	default:
		at = first + (int)below(600);
		if (at != fd) {
			OR_DIE(dup3(fd, at, O_CLOEXEC) == at);
			book[at] = "dup3";
		}
	}
}

/* Some descriptors through a socket, behind credentials now and then, and cut off where there is no room for all. */
static void receive(int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(RECEIVED_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
	} control;
	char byte = 0;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control };
	int pair[2], n = 1 + (int)below(most), one = 1, wanted = (int)below(2) ? n : 1 + (int)below((unsigned)n);
	struct cmsghdr *part;

	OR_DIE(!socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	if (below(2))
		OR_DIE(!setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)));
	memset(&control, 0, sizeof(control));
	message.msg_controllen = CMSG_SPACE((unsigned)n * sizeof(int));
	part = CMSG_FIRSTHDR(&message);
	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN((unsigned)n * sizeof(int));
	for (int i = 0; i < n; i++)
		((int *)CMSG_DATA(part))[i] = fd;
	while (sendmsg(pair[0], &message, 0) < 0) /* io_uring's are not passed on */
		for (int i = 0; i < n; i++)
			((int *)CMSG_DATA(part))[i] = STDOUT_FILENO;
	message.msg_controllen = CMSG_SPACE((unsigned)wanted * sizeof(int)) + (below(2) ? CMSG_SPACE(sizeof(struct ucred)) : 0);
	OR_DIE(recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) == 1);
	for (part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
		for (unsigned i = 0; part->cmsg_type == SCM_RIGHTS && CMSG_LEN((i + 1) * sizeof(int)) <= part->cmsg_len; i++)
			enter(((int *)CMSG_DATA(part))[i], "recvmsg");
	OR_DIE(!close(pair[0]) && !close(pair[1]));
}

static void close_some(int fd)
{
	unsigned last = (unsigned)fd + below(6);

	switch (below(24)) {
	case 0:
		OR_DIE(!close_range((unsigned)fd, last, CLOSE_RANGE_CLOEXEC)); /* closes nothing */
		break;
	case 1:
	case 2:
		OR_DIE(!close_range((unsigned)fd, last, 0));
		for (unsigned i = (unsigned)fd; i <= last && i < 1024; i++)
			close_it((int)i);
		break;
	case 3:
		if (below(200))
			break;
		if (below(2))
			closefrom(fd);
		else
			OR_DIE(!close_range((unsigned)fd, ~0u, 0));
		for (int i = fd; i < 1024; i++)
			close_it(i);
		break;
	default:
		OR_DIE(!close(fd));
		close_it(fd);
	}
}

/* What libc opens and closes for itself, or is handed. */
static void by_libc(void)
{
	FILE *file = freopen("/dev/zero", "r", fopen("/dev/null", "r"));
	DIR *folder = opendir("/"), *handed = fdopendir(open("/", O_RDONLY | O_DIRECTORY));

	OR_DIE(file && !fclose(file) && folder && !closedir(folder) && handed && !closedir(handed));
	file = fdopen(open("/dev/null", O_RDONLY), "r");
	OR_DIE(file && !fclose(file));
	file = tmpfile();
	OR_DIE(file && !fclose(file));
	if (!below(16)) {
		file = popen("true", "r");
		OR_DIE(file && !pclose(file));
	}
}

/* It closes and opens in a table of its own, in its parent's memory or not. */
static void in_child(int fd)
{
	char *const words[] = { "true", NULL };
	posix_spawn_file_actions_t actions;
	int way = (int)below(3);
	pid_t child;

	if (way == 2) {
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_adddup2(&actions, fd, 900);
		OR_DIE(!posix_spawnp(&child, "true", &actions, NULL, words, environ));
		posix_spawn_file_actions_destroy(&actions);
	} else {
		child = way ? vfork() : fork();
		if (!child) {
			dup2(fd, 900);
			close(fd);
			_exit(0);
		}
	}
	OR_DIE(waitpid(child, NULL, 0) == child);
}

/* Calls that give no descriptor. */
static void keep_all(int fd)
{
	sigset_t set;
	int own;

	OR_DIE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL)) >= 0 && fcntl(fd, F_GETFD) >= 0);
	sigemptyset(&set);
	own = signalfd(-1, &set, 0);
	sigaddset(&set, SIGUSR1);
	OR_DIE(own >= 0 && signalfd(own, &set, 0) == own && !close(own));
}

static int n_open(void)
{
	int n = 0;

	for (int fd = first; fd < 1024; fd++)
		n += book[fd] != NULL;
	return n;
}

static void hold_against_kernel(void)
{
	for (int fd = first; fd < 1024; fd++) {
		char name[64], target[64];

		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		OR_DIE((readlink(name, target, sizeof(target)) >= 0) == (book[fd] != NULL));
	}
}

/* MOST: descriptors of a message. With one argument more nothing that libc opens and closes for itself. */
int main(int n_arguments, char **arguments)
{
	int number = atoi(arguments[2]);

	state = strtoul(arguments[1], NULL, 0);
	most = (unsigned)atoi(arguments[3]) % (RECEIVED_MAX + 1);
	first = 3;
	while (fcntl(first, F_GETFD) >= 0)
		first++;
	for (int i = 0; i < number; i++) {
		int fd = some_open(), open = n_open();

		if (fd < 0 || ((below(5) < 2 || open < 60) && open < OPEN_MAX)) {
			switch (below(13)) {
			case 0: open_two(); break;
			case 1: accept_one((int)below(2) - 1); break;
			case 2:
				if (n_arguments == 4)
					by_libc();
				break;
			case 3:
				if (fd >= 0 && !below(16))
					in_child(fd);
				break;
			case 4:
				if (fd >= 0)
					receive(fd);
				break;
			case 5:
			case 6:
				if (fd >= 0)
					duplicate(fd);
				break;
			case 7: keep_all(fd < 0 ? STDOUT_FILENO : fd); break;
			default: open_any();
			}
		} else {
			close_some(fd);
		}
	}
	hold_against_kernel();
	for (int fd = first; fd < 1024; fd++)
		if (book[fd]) {
			int n = 0;

			for (int i = fd + 1; i < 1024; i++)
				if (book[i] && !strcmp(book[i], book[fd])) {
					book[i] = NULL;
					n++;
				}
			printf("%s %d\n", book[fd], n + 1);
		}
	fflush(stdout);
	_exit(0);
}
