#include <cstdarg>
#include <stdexcept>

#include "odd_calls.h"

long odd_many(long handle, long b, long c, long d, long e, long f, long g, long h, double i, double j, double k,
	      double l, double m, double n, double o, double p, double q, long r)
{
	return handle + 2 * b + 3 * c + 5 * d + 7 * e + 11 * f + 13 * g + 17 * h +
	       static_cast<long>(i + 2 * j + 3 * k + 4 * l + 5 * m + 6 * n + 7 * o + 8 * p + 9 * q) + 19 * r;
}

double odd_double(long handle, double x)
{
	return static_cast<double>(handle) + x;
}

long double odd_long_double(long handle, long double x)
{
	return static_cast<long double>(handle) * x;
}

Large odd_large(long handle)
{
	return { { handle, handle + 1, handle + 2, handle + 3, handle + 4 } };
}

Mixed odd_mixed(long handle)
{
	return { static_cast<double>(handle) / 2, handle * 3 };
}

Vector odd_vector(long handle)
{
	double one = static_cast<double>(handle);

	return { one, one + 1, one + 2, one + 3 };
}

long odd_variadic(long handle, int n, ...)
{
	va_list more;
	double sum = 0;

	va_start(more, n);
	for (int i = 0; i < n; i++)
		sum += va_arg(more, double);
	va_end(more);
	return handle + static_cast<long>(sum);
}

void odd_throw(long handle)
{
	if (handle)
		throw std::runtime_error("odd");
}

/* Calls another of the family, which is part of it. */
long odd_outer(long handle)
{
	return odd_variadic(handle + 1, 0) - 1;
}

void odd_done(long)
{
}
