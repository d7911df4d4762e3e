// SPDX-License-Identifier: Apache-2.0
// Functions of the sets cxx and fd that an exception, and a cancelled thread, leave; then what is held in the end.
#include <fcntl.h>
#include <new>
#include <pthread.h>

static int destroyed;

struct Guard {
	~Guard() { destroyed++; }
};

static void *cancelled(void *)
{
	Guard guard;

	pthread_cancel(pthread_self());
	open("/dev/null", O_RDONLY); // here: a cancellation point
	return nullptr;
}

int main()
{
	static char *volatile blocks[3];
	volatile size_t too_large = static_cast<size_t>(1) << 46;
	int caught = 0;
	pthread_t thread;

	for (int i = 0; i < 5; i++) {
		try {
			blocks[0] = new char[too_large];
		} catch (const std::bad_alloc &) {
			caught++;
		}
	}
	for (int i = 0; i < 3; i++)
		blocks[i] = new char[100];
	if (pthread_create(&thread, nullptr, cancelled, nullptr) || pthread_join(thread, nullptr))
		return 1;
	return caught == 5 && destroyed == 1 && open("/dev/null", O_RDONLY) >= 0 && open("/dev/null", O_RDONLY) >= 0 ? 0 : 2;
}
