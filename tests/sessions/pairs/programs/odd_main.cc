// Checks each result: its exit code is the line of the first that is wrong.
#include <stdexcept>

#include "odd_calls.h"

#define CHECK(what) \
	if (!(what)) \
		return __LINE__ % 255 + 1

__attribute__((noinline)) static int catches(long handle)
{
	long one = 11, two = 22, three = 33; // in registers that the unwinder gives back

	__asm__ volatile("" : "+r"(one), "+r"(two), "+r"(three));
	try {
		odd_throw(handle);
	} catch (const std::runtime_error &) {
		__asm__ volatile("" : "+r"(one), "+r"(two), "+r"(three));
		return one == 11 && two == 22 && three == 33;
	}
	return 0;
}

int main()
{
	CHECK(odd_many(1000, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8) == 1000 + 2 + 6 + 15 + 28 + 55 + 78 + 119 + 285 + 152);
	CHECK(odd_double(1001, 0.5) == 1001.5);
	CHECK(odd_long_double(1002, 0.5L) == 501.0L);
	CHECK(odd_large(1003).values[4] == 1007);
	Mixed mixed = odd_mixed(1004);
	CHECK(mixed.number == 502 && mixed.word == 3012);
	odd_done(1004);
	CHECK(odd_mixed(1004).word == 3012);
	Vector vector = odd_vector(1005);
	CHECK(vector.x == 1005 && vector.y == 1006 && vector.z == 1007 && vector.w == 1008);
	CHECK(odd_variadic(1006, 3, 1.0, 2.0, 4.0) == 1013);
	CHECK(catches(1007));
	CHECK(odd_outer(1008) == 1008);
	for (long i = 0; i < 100; i++) {
		CHECK(odd_double(5000 + i, 1) == 5001 + static_cast<double>(i));
		odd_done(5000 + i);
	}
	return 0;
}
