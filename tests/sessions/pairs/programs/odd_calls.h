// Functions that are awkward to stand in for: arguments in every place, results in every place, exceptions.
struct Large {
	long values[5];
};
struct Mixed {
	double number;
	long word;
};
struct Vector {
	double x, y, z, w;
};

extern "C" {
long odd_many(long, long, long, long, long, long, long, long, double, double, double, double, double, double, double,
	      double, double, long);
double odd_double(long, double);
long double odd_long_double(long, long double);
Large odd_large(long);
Mixed odd_mixed(long);
Vector odd_vector(long);
long odd_variadic(long, int, ...);
void odd_throw(long);
long odd_outer(long);
void odd_done(long);
}
