/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers of a session's socket that do as they like, beside the agent's side in the same process. Arguments: seconds and seed. Writes what
 * does not hold. Under sanitizers; every descriptor that a peer sends must be gone at the end.
 */
#include "../../../support/programs/libc.h"

#include "agent/protocol/abstract_socket.h"
#include "agent/protocol/blocks.h"
#include "agent/shim/handshakes.h"
#include "checks.h"
#include "small_settings.h"

#define PEERS 40
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define BLOCKED_S 20 /* SIGALRM then ends the program: a call of the agent's waits */

static const struct ml_nonce nonce = { { 0x0123456789abcdef, 0xfedcba9876543210 } };
static struct ml_handshakes handshakes;
static ml_u32 next_index;
static struct ml_invitation invitation = { &nonce, &settings, NULL, &next_index };
static char name[64];
static int listener;
static ml_u64 clock_ns = 1;

/* ---- what the parts call ------------------------------------------------------------------------------ */

ml_u64 ml_clock_ns(void)
{
	return clock_ns;
}

void ml_preload_target_drop_maps(struct ml_preload_target *target)
{
	(void)target;
}

/* ---- peers -------------------------------------------------------------------------------------------- */

static int count_descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static struct ml_greeting greeting_of(const struct ml_settings *wanted)
{
	return (struct ml_greeting){
		.magic = ML_SEGMENT_MAGIC, .nonce = nonce, .wire_version = ML_WIRE_VERSION, .settings = *wanted
	};
}

static ssize_t send_part(int connection, const void *bytes, size_t n_bytes, const int *fds, size_t n)
{
	union {
		char bytes[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr head;
	} control = { .head = { .cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	struct iovec part = { (void *)bytes, n_bytes };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = n ? &control : NULL,
				  .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };

	if (n)
		memcpy(CMSG_DATA(&control.head), fds, n * sizeof(int));
	return sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ml_u64 segment_bytes(const struct ml_settings *wanted)
{
	struct ml_view view = { 0 };

	return ml_view_set(&view, NULL, wanted) ? 4096 : view.bytes;
}

enum memory { GOOD, LONGER, UNSEALED, HALF_SEALED, READ_ONLY, NO_WRITES, HUGE_PAGES, REGULAR, EVENTS, DEVICE, BY_PATH, MEMORIES };

static int make_memfd(unsigned flags, ml_u64 bytes, int seals)
{
	int fd = memfd_create("memleak", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	if (fd >= 0 && (ftruncate(fd, (off_t)bytes) || (seals && fcntl(fd, F_ADD_SEALS, seals)))) {
		close(fd);
		return -1;
	}
	return fd;
}

static int reopened(int fd, int flags)
{
	char path[40];
	int other;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	other = open(path, flags | O_CLOEXEC);
	close(fd);
	return other;
}

static int make_memory(enum memory kind, ml_u64 bytes)
{
	switch (kind) {
	case LONGER: return make_memfd(0, bytes + 4096, SEALS);
	case UNSEALED: return make_memfd(0, bytes, 0);
	case HALF_SEALED: return make_memfd(0, bytes, F_SEAL_GROW);
	case READ_ONLY: return reopened(make_memfd(0, bytes, SEALS), O_RDONLY);
	case NO_WRITES: return make_memfd(0, bytes, SEALS | F_SEAL_WRITE);
	case HUGE_PAGES: return make_memfd(MFD_HUGETLB, bytes, SEALS); /* whole pages of 2 MiB only */
	case REGULAR: return open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	case EVENTS: return eventfd(0, EFD_CLOEXEC);
	case DEVICE: return open("/dev/zero", O_RDWR | O_CLOEXEC);
	case BY_PATH: return reopened(make_memfd(0, bytes, SEALS), O_PATH);
	default: return make_memfd(0, bytes, SEALS);
	}
}

/* ---- the agent ---------------------------------------------------------------------------------------- */

/* Returns how many processes joined; those with a reason count in *n_refused. */
static int run_agent(int *n_refused, const char **reason)
{
	struct ml_joined joined;
	int n = 0;

	alarm(BLOCKED_S);
	ml_handshakes_accept(&handshakes, listener, &invitation);
	while (ml_handshakes_next(&handshakes, &invitation, &joined)) {
		check(!joined.target == (joined.reason != NULL), "neither a target nor a reason, or both");
		if (joined.reason && n_refused)
			++*n_refused;
		if (reason)
			*reason = joined.reason;
		if (!joined.target)
			continue;
		memset(joined.target->view.segment, 1, sizeof(*joined.target->view.segment)); /* is it there? */
		ml_handshake_release(joined.connection);
		close(joined.connection);
		ml_preload_target_destroy(joined.target);
		n++;
	}
	alarm(0);
	return n;
}

/* ---- cases -------------------------------------------------------------------------------------------- */

static int ask(const struct ml_settings *wanted, struct ml_greeting *answer)
{
	int connection = ml_abstract_connect(name);

	*answer = greeting_of(wanted);
	send_part(connection, answer, sizeof(*answer), NULL, 0);
	check(!run_agent(NULL, NULL), "a process joined by its first greeting");
	check(recv(connection, answer, sizeof(*answer), MSG_DONTWAIT) == (ssize_t)sizeof(*answer), "no answer to the nonce");
	answer->settings = *wanted;
	return connection;
}

static int brings(enum memory kind, size_t n_copies, const struct ml_settings *wanted, const char **reason)
{
	struct ml_greeting greeting;
	int connection = ask(wanted, &greeting), fd = make_memory(kind, segment_bytes(wanted));
	int copies[] = { fd, fd, fd, fd }, n;

	*reason = NULL;
	if (fd < 0) { /* of huge pages there may be none */
		close(connection);
		run_agent(NULL, NULL);
		return 0;
	}
	send_part(connection, &greeting, sizeof(greeting), copies, n_copies);
	close(fd);
	n = run_agent(NULL, reason);
	close(connection);
	run_agent(NULL, NULL);
	return n;
}

static void only_what_was_agreed_is_mapped(void)
{
	struct ml_settings less = settings, more = settings;
	const char *reason;

	less.n_threads = 2;
	less.n_chunks = 0;
	more.max_live = 1u << 20;
	check(brings(GOOD, 1, &settings, &reason) == 1, "the agreed memory was refused");
	check(brings(GOOD, 1, &less, &reason) == 1, "less memory was refused");
	check(!brings(GOOD, 1, &more, &reason) && reason, "more memory than was offered");
	check(!brings(GOOD, 0, &settings, &reason) && reason, "no descriptor");
	check(!brings(GOOD, 2, &settings, &reason) && reason, "more than one descriptor");
	for (enum memory kind = LONGER; kind < MEMORIES; kind++)
		check(!brings(kind, 1, &settings, &reason), "memory that is not a whole sealed memfd");
}

/* Of a size that such a memfd can have. A page that is missing would be a SIGBUS. */
static void huge_pages_are_not_mapped(void)
{
	struct ml_settings huge = settings;
	const char *reason = NULL;
	int n = 0;

	for (int i = 0; i < 6 * 13 * 4; i++) {
		huge.n_chunks = 2u << i % 6;
		huge.n_keys = 16u << i / 6 % 13;
		huge.n_threads = 2u << i / 6 / 13;
		if (segment_bytes(&huge) % (2u << 20) == 0) {
			invitation.settings = &huge;
			check(!brings(HUGE_PAGES, 1, &huge, &reason), "memory whose pages may be missing");
			check(brings(GOOD, 1, &huge, &reason) == 1, "the agreed memory of that size");
			n++;
		}
	}
	invitation.settings = &settings;
	check(n > 0, "no size of whole huge pages: nothing was put to the test");
}

static void strangers_are_replaced(void)
{
	int idle[PEERS];
	struct ml_greeting greeting = greeting_of(&settings);
	struct pollfd sources[ML_HANDSHAKES_MAX];
	int connection;

	for (int i = 0; i < PEERS; i++) {
		idle[i] = ml_abstract_connect(name);
		send_part(idle[i], &greeting, sizeof(greeting) - 1, NULL, 0);
	}
	run_agent(NULL, NULL);
	check(ml_handshakes_poll(&handshakes, sources) == ML_HANDSHAKES_OF_USER, "a user's handshakes without the nonce");
	check(recv(idle[0], &greeting, 1, MSG_DONTWAIT) == 0, "the oldest one was kept");
	connection = ask(&settings, &greeting);
	clock_ns += 6000000000ull;
	run_agent(NULL, NULL);
	check(ml_handshakes_poll(&handshakes, sources) == 0, "a handshake has no deadline");
	for (int i = 0; i < PEERS; i++)
		close(idle[i]);
	close(connection);
}

static void a_wrong_nonce_is_not_answered(void)
{
	struct ml_greeting greeting = greeting_of(&settings);
	struct pollfd sources[ML_HANDSHAKES_MAX];

	for (int bit = 0; bit < 128; bit++) {
		int connection = ml_abstract_connect(name), n_refused = 0;

		greeting.nonce = nonce;
		greeting.nonce.words[bit / 64] ^= 1ull << bit % 64;
		send_part(connection, &greeting, sizeof(greeting), NULL, 0);
		check(!run_agent(&n_refused, NULL) && !n_refused && !ml_handshakes_poll(&handshakes, sources), "a wrong nonce");
		close(connection);
	}
}

/* ---- random peers ------------------------------------------------------------------------------------- */

struct peer {
	int connection;
	struct ml_greeting greeting;
	size_t sent;
};

static void mutate(struct ml_greeting *greeting)
{
	unsigned char *bytes = (unsigned char *)greeting;

	for (unsigned n = random_below(4); n; n--)
		bytes[random_below(sizeof(*greeting))] = (unsigned char)rand();
}

static void begin(struct peer *peer)
{
	*peer = (struct peer){ .connection = ml_abstract_connect(name), .greeting = greeting_of(&settings) };
	if (!random_below(3))
		mutate(&peer->greeting);
}

static void send_some(struct peer *peer)
{
	size_t left = sizeof(peer->greeting) - peer->sent, n = random_below(2) ? left : random_below((unsigned)left + 1);
	int fds[8], n_fds = random_below(3) ? 0 : (int)random_below(5);
	ssize_t sent;

	if (!n)
		return;
	for (int i = 0; i < n_fds; i++) {
		fds[i] = make_memory(random_below(2) ? GOOD : random_below(MEMORIES), segment_bytes(&settings));
		if (fds[i] < 0)
			n_fds = i;
	}
	sent = send_part(peer->connection, (char *)&peer->greeting + peer->sent, n, fds, (size_t)n_fds);
	peer->sent += sent > 0 ? (size_t)sent : 0;
	for (int i = 0; i < n_fds; i++)
		close(fds[i]);
}

/* Goes on as the shim does, with what was answered or something like it. */
static void take_answer(struct peer *peer)
{
	if (recv(peer->connection, &peer->greeting, sizeof(peer->greeting), MSG_DONTWAIT) != (ssize_t)sizeof(peer->greeting))
		return;
	peer->sent = 0;
	if (random_below(2))
		mutate(&peer->greeting);
}

static void act(struct peer *peer)
{
	switch (random_below(8)) {
	case 0: shutdown(peer->connection, (int)random_below(3)); break;
	case 1:
		close(peer->connection);
		peer->connection = -1;
		break;
	case 2: clock_ns += random_below(2) ? 0 : 3000000000ull; break;
	case 3:
	case 4: take_answer(peer); break;
	default: send_some(peer);
	}
}

/* Returns how many processes joined. */
static int run_random(struct peer peers[PEERS], int baseline)
{
	int n = 0;

	for (unsigned i = 0; i < 400; i++) {
		struct peer *peer = &peers[random_below(PEERS)];

		if (peer->connection < 0)
			begin(peer);
		else
			act(peer);
		if (!random_below(4))
			n += run_agent(NULL, NULL);
	}
	for (int i = 0; i < PEERS; i++) {
		close(peers[i].connection);
		peers[i].connection = -1;
	}
	n += run_agent(NULL, NULL);
	ml_handshakes_close(&handshakes);
	check(count_descriptors() == baseline, "a descriptor was left open");
	return n;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	struct peer peers[PEERS];
	int baseline, n = 0, rounds = 0;

	srand(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
	snprintf(name, sizeof(name), "memleak-test-%d", (int)getpid());
	listener = ml_abstract_listen(name);
	check(listener >= 0, "no listener");
	for (int i = 0; i < PEERS; i++)
		peers[i].connection = -1;
	baseline = count_descriptors();
	a_wrong_nonce_is_not_answered();
	only_what_was_agreed_is_mapped();
	huge_pages_are_not_mapped();
	strangers_are_replaced();
	check(count_descriptors() == baseline, "a descriptor was left open by the cases");
	do
		n += run_random(peers, baseline);
	while (time(NULL) < end || (!n && ++rounds < 10000)); /* a busy machine comes to few in that time, and few join */
	check(n > 0, "no process joined: nothing was put to the test");
	return 0;
}
