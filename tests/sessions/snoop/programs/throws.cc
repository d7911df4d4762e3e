/* Exceptions through functions that are snooped on: they must arrive. */
#include <cstdio>
#include <stdexcept>

__attribute__((noinline, noipa)) int thrower(int n)
{
	asm volatile("");
	if (!n)
		throw std::runtime_error("as planned");
	int below = thrower(n - 1);
	asm volatile("" : "+r"(below));
	return below + 1;
}

__attribute__((noinline, noipa)) int catcher(int n)
{
	asm volatile("");
	try {
		return thrower(n);
	} catch (const std::exception &) {
		return -n;
	}
}

int main()
{
	int sum = 0;

	for (int i = 0; i < 10; i++)
		sum += catcher(3);
	printf("%d\n", sum);
	return 0;
}
