/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of abstract sockets, for the agent and the shim. Any user may bind or connect to them: both ends check the other. */
#pragma once

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Fills in the address of a name. Returns its length in bytes; 0: the name is empty or too long. */
static inline socklen_t ml_abstract_address(struct sockaddr_un *address, const char *name)
{
	size_t length = 0;

	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	for (; name[length]; length++) {
		if (length + 1 == sizeof(address->sun_path))
			return 0;
		address->sun_path[length + 1] = name[length]; /* sun_path[0] == 0: the abstract name space */
	}
	return length ? (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length) : 0;
}
