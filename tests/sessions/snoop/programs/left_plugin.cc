// SPDX-License-Identifier: Apache-2.0
static void *throws()
{
	throw 7;
}

extern "C" int n_caught(void *(*pass)(void *(*)()))
{
	int n = 0;

	for (int i = 0; i < 3; i++)
		try {
			pass(throws);
		} catch (int) {
			n++;
		}
	return n;
}
