// SPDX-License-Identifier: Apache-2.0
#include "preload/recorder/connect.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "abstract_address.h"
#include "preload/freestanding/clock.h"
#include "preload/segment/keys.h"
#include "preload/freestanding/syscalls.h"

extern int __system_property_get(const char *name, char *value) __attribute__((weak)); /* on bionic only */

#define LEAST_THREADS 16u
#define LEAST_LIVE (1u << 18)
#define SEGMENT_BYTES_MAX (sizeof(long) == 8 ? 1ull << 62 : 1ull << 29) /* leaves address space for the target */
#define ANDROID_SHELL 2000 /* AID_SHELL of android_filesystem_config.h, under which adb's commands run */
#define RECEIVE_TIMEOUT 20 /* SO_RCVTIMEO_OLD, whose time is two longs */
#define PATIENCE_SECONDS 20 /* a machine may be busy; then the program goes on without the agent */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int (*ml_connect_without_agent)(struct ml_view *view);

/* Abstract names have no owner, so the agent must run as a user who may read this process anyway. */
static int may_serve(uid_t uid)
{
	return uid == 0 || uid == (uid_t)ML_GETEUID() ||
	       ((__system_property_get || ml_connect_session.is_bionic) && uid == ANDROID_SHELL);
}

static long connect_socket(long fd)
{
	struct sockaddr_un address;
	socklen_t bytes = ml_abstract_address(&address, ml_connect_session.socket_name);

	return bytes ? ML_SYSCALL3(connect, fd, &address, bytes) : -EINVAL;
}

static long check_peer(long fd)
{
	struct ucred peer = { 0, 0, 0 };
	socklen_t bytes = sizeof(peer);
	long error = ml_syscall(__NR_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, (long)&peer, (long)&bytes, 0);

	return error || may_serve(peer.uid) ? error : -EPERM;
}

/* EAGAIN means that the queue is full, so the agent exists. */
int ml_connect_is_agent_there(void)
{
	long fd = ML_SYSCALL3(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	long error;

	if (fd < 0)
		return 1; /* unknown */
	error = connect_socket(fd);
	if (!error)
		error = check_peer(fd); /* another user may have taken the name since */
	ML_SYSCALL1(close, fd);
	return error != -ECONNREFUSED && error != -EPERM;
}

static long connect_agent(void)
{
	long fd = ML_SYSCALL3(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	long patience[2] = { PATIENCE_SECONDS, 0 }; /* struct timeval */
	long error;

	if (fd < 0)
		return fd;
	error = connect_socket(fd);
	if (!error)
		error = check_peer(fd);
	if (!error) {
		ml_syscall(__NR_setsockopt, fd, SOL_SOCKET, RECEIVE_TIMEOUT, (long)patience, sizeof(patience), 0);
		return fd;
	}
	ML_SYSCALL1(close, fd);
	return error;
}

static int receive_all(long fd, void *to, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		long n = ML_SYSCALL3(read, fd, (char *)to + done, bytes - done);

		if (n == -EINTR)
			continue;
		if (n <= 0)
			return -EPROTO;
		done += (size_t)n;
	}
	return 0;
}

static int send_with_fd(long socket, const void *bytes, size_t n_bytes, long fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr head;
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	struct iovec part = { (void *)bytes, n_bytes };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (fd >= 0) {
		*(int *)(void *)CMSG_DATA(&control.head) = (int)fd;
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	return ML_SYSCALL3(sendmsg, socket, &message, MSG_NOSIGNAL) == (long)n_bytes ? 0 : -EPROTO;
}

/* Whether the process has called mlockall(MCL_FUTURE), which fills what is mapped with pages at once; true if unknown. */
static int is_filled_at_once(void)
{
	unsigned char is_present = 1;
	long page = ML_MMAP(0, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	if (ml_is_error(page))
		return 1;
	ML_SYSCALL3(mincore, page, 1, &is_present);
	ML_SYSCALL2(munmap, page, 1);
	return is_present & 1;
}

/*
 * Maps the file for a guest's use: not part of core dumps, nor filled with pages at once. What can be accessed when it is mapped would be
 * (mm/gup.c, populate_vma_page_range()). Making it so later takes valgrind's memcheck minutes, which does it byte by byte.
 */
static long map_memory(long fd, ml_u64 bytes, void **base)
{
	int is_later = is_filled_at_once();
	long address = ML_MMAP(0, bytes, is_later ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd),
	     error = 0;

	if (ml_is_error(address))
		return address;
	if (is_later)
		ML_SYSCALL2(munlock, address, bytes);
	ML_SYSCALL3(madvise, address, bytes, MADV_DONTDUMP);
	if (is_later)
		error = ML_SYSCALL3(mprotect, address, bytes, PROT_READ | PROT_WRITE);
	if (error)
		ML_SYSCALL2(munmap, address, bytes);
	*base = (void *)address;
	return error;
}

static long make_memory(ml_u64 bytes, void **base)
{
	long fd, error;

	if (bytes > SEGMENT_BYTES_MAX)
		return -ENOMEM;
	fd = ML_SYSCALL2(memfd_create, ML_SEGMENT_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return fd;
	error = ml_may_write_file(bytes) ? ML_FTRUNCATE(fd, bytes) : -EFBIG;
	if (!error)
		error = ML_SYSCALL3(fcntl, fd, F_ADD_SEALS, SEALS);
	if (!error)
		error = map_memory(fd, bytes, base);
	if (!error)
		return fd;
	ML_SYSCALL1(close, fd);
	return error;
}

/*
 * With little address space (`ulimit -v`, 32 bits) asks for fewer thread slots and less shadow memory, then for fewer
 * blocks. Threads beyond share a slot; blocks beyond are counted as lost.
 */
static int ask_for_less(struct ml_settings *settings)
{
	if (settings->n_threads > LEAST_THREADS) {
		settings->n_threads /= 4;
		settings->n_chunks /= 4;
	} else if (settings->max_live > LEAST_LIVE) {
		settings->max_live /= 4;
	} else {
		return 0;
	}
	return 1;
}

void ml_connect_begin(struct ml_view *view, void *base, const struct ml_settings *settings)
{
	ml_clock_find_vdso();
	ml_view_set(view, base, settings);
	view->segment->magic = ML_SEGMENT_MAGIC;
	view->segment->wire_version = ML_WIRE_VERSION;
	view->segment->pid = (ml_u32)ML_SYSCALL0(getpid);
	view->segment->settings = *settings;
	view->segment->start_ns = ml_clock_coarse_ns() >> ML_TICK_SHIFT << ML_TICK_SHIFT;
	view->segment->n_levels_open = 1;
	view->segment->n_keys_used = 1;
	view->segment->maps_dirty = ML_MAPS_DIRTY;
}

/* <valgrind/valgrind.h>: RUNNING_ON_VALGRIND, by rotations that add up to none elsewhere. */
static int is_on_valgrind(void)
{
	unsigned long request[6] = { 0x1001 }, found = 0;

#if defined(__x86_64__)
	__asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx"
			 : "+d"(found)
			 : "a"(request)
			 : "cc", "memory");
#else
	(void)request;
#endif
	return found != 0;
}

static int exchange(long socket, struct ml_view *view)
{
	struct ml_greeting greeting = {
		.magic = ML_SEGMENT_MAGIC,
		.nonce = ml_connect_session.nonce,
		.wire_version = ML_WIRE_VERSION,
		.pid = (ml_u32)ML_SYSCALL0(getpid),
		.parent = (ml_u32)ML_SYSCALL0(getppid),
	};
	void *base = NULL;
	long fd;
	char go;
	int error = send_with_fd(socket, &greeting, sizeof(greeting), -1);

	if (!error)
		error = receive_all(socket, &greeting, sizeof(greeting));
	if (error || greeting.magic != ML_SEGMENT_MAGIC || !ml_nonce_is_same(&greeting.nonce, &ml_connect_session.nonce) ||
	    greeting.wire_version != ML_WIRE_VERSION)
		return -EPROTO;
	while (is_on_valgrind() && ask_for_less(&greeting.settings))
		; /* memcheck searches all of the segment for pointers at the end, which fills it with pages */
	do {
		if (ml_view_set(view, NULL, &greeting.settings))
			return -EPROTO;
		fd = make_memory(view->bytes, &base);
	} while (fd < 0 && ask_for_less(&greeting.settings));
	greeting.pid = (ml_u32)ML_SYSCALL0(getpid);
	if (fd < 0) {
		greeting.magic = (ml_u64)-fd; /* the agent reports why */
		send_with_fd(socket, &greeting, sizeof(greeting), -1);
		return (int)fd;
	}
	ml_connect_begin(view, base, &greeting.settings);
	view->segment->session_index = greeting.session_index;
	ml_peak_begin(view);
	error = send_with_fd(socket, &greeting, sizeof(greeting), fd);
	if (!error)
		error = receive_all(socket, &go, 1);
	ML_SYSCALL1(close, fd);
	return error;
}

int ml_connect_segment(struct ml_view *view)
{
	long socket;
	int error;

	if (ml_connect_without_agent)
		return ml_connect_without_agent(view);
	socket = ml_nonce_is_set(&ml_connect_session.nonce) ? connect_agent() : -EPROTO;
	if (socket < 0)
		return (int)socket;
	error = exchange(socket, view);
	ML_SYSCALL1(close, socket);
	return error;
}
