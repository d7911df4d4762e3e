// SPDX-License-Identifier: Apache-2.0
#include "agent/shim/session_word.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/protocol/abstract_socket.h"
#include "agent/protocol/config.h"

/* getrandom(2) exists since Linux 3.17. */
static int fill_random(void *bytes, size_t n_bytes)
{
	ssize_t n = getrandom(bytes, n_bytes, 0);
	int fd = n < 0 && errno == ENOSYS ? open("/dev/urandom", O_RDONLY | O_CLOEXEC) : -1;

	if (fd >= 0) {
		n = read(fd, bytes, n_bytes);
		close(fd);
	}
	return n == (ssize_t)n_bytes ? 0 : -1;
}

/* The name is in /proc/net/unix, which every user can read: it has no bit in common with the nonce. */
static int make_up(char text[ML_SESSION_WORD_MAX])
{
	struct {
		ml_u64 name;
		struct ml_nonce nonce;
	} random;

	if (fill_random(&random, sizeof(random)))
		return -1;
	snprintf(text, ML_SESSION_WORD_MAX, "memleakd-%016llx:%016llx%016llx", (unsigned long long)random.name,
		 (unsigned long long)random.nonce.words[0], (unsigned long long)random.nonce.words[1]);
	return 0;
}

/* The two halves, by a copy of each: ml_config_number() reads whole texts. */
static bool parse_nonce(const char *digits, struct ml_nonce *nonce)
{
	char half[ML_NONCE_DIGITS / 2 + 1];

	for (int i = 0; i < 2; i++, digits += sizeof(half) - 1) {
		snprintf(half, sizeof(half), "%s", digits);
		if (strspn(half, "0123456789abcdefABCDEF") != sizeof(half) - 1 || !ml_config_number(half, 16, &nonce->words[i]))
			return false;
	}
	return !*digits && ml_nonce_is_set(nonce);
}

static int parse(struct ml_session_word *word)
{
	const char *colon = strrchr(word->text, ':');

	errno = EINVAL;
	if (!colon || colon == word->text || !parse_nonce(colon + 1, &word->nonce))
		return -1;
	snprintf(word->name, sizeof(word->name), "%.*s", (int)(colon - word->text), word->text);
	return 0;
}

int ml_session_word_listen(struct ml_session_word *word, const char *awaited)
{
	errno = EINVAL;
	if (awaited && snprintf(word->text, sizeof(word->text), "%s", awaited) >= (int)sizeof(word->text))
		return -1;
	return (!awaited && make_up(word->text)) || parse(word) ? -1 : ml_abstract_listen(word->name);
}
