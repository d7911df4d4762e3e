/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Abstract sockets of the agent. Every user of the machine may connect to them, so nothing here waits for the other end: all sockets
 * are non-blocking, messages to a listener bring no descriptors where the kernel can refuse them (Linux 6.16), and the other
 * end's user is known before its first byte is read.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#define ML_ABSTRACT_DESCRIPTORS 3 /* received at one time, at most */

/* A socket, or -1 with errno. */
int ml_abstract_listen(const char *name);
int ml_abstract_connect(const char *name);

/* Accepts a connection, and sets its other end's user and process. -1: there is none. */
int ml_abstract_accept(int listener, struct ucred *peer);

/* Whether messages may bring descriptors. -1: the kernel cannot refuse them. */
int ml_abstract_let_descriptors_in(int connection, bool may_pass);

/* close(2) of a connection, a listener or what was received, whatever is queued in it. */
void ml_abstract_close(int fd);

/* The other end. -1: errno. */
int ml_abstract_peer(int connection, struct ucred *peer);

/*
 * Receives up to `room` bytes, and exactly n or no descriptors; fds: -1 for none. n = 0: the kernel drops them unseen. Returns the bytes,
 * 0: the other end has closed, or -1 with errno: EAGAIN, or EPROTO after another number of descriptors, of which none is left open.
 */
ssize_t ml_abstract_receive(int connection, void *bytes, size_t room, int *fds, size_t n);
