// SPDX-License-Identifier: Apache-2.0
/* A thread waits in vfork() for its child: no signal and no tracer stops it. Writes a byte once it is so. */
#include <pthread.h>
#include <unistd.h>

static void *thread(void *unused)
{
	if (!vfork()) {
		if (write(1, "w", 1) == 1)
			sleep(30);
		_exit(0);
	}
	return unused;
}

int main(void)
{
	pthread_t id;

	pthread_create(&id, 0, thread, 0);
	return pthread_join(id, 0);
}
