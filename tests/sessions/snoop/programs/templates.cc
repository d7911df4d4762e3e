/* Functions whose mangled names hold a return type, or blanks that people leave out. */
namespace shop
{
template <typename T, int N> __attribute__((noinline)) int scale(T value)
{
	__asm__ volatile("");
	return (int)value * N;
}

template <typename T> struct Basket {
	T sum = 0;

	__attribute__((noinline)) void add(const T &value)
	{
		__asm__ volatile("");
		sum += value;
	}
};
}

int main()
{
	shop::Basket<long> basket;

	for (int i = 0; i < 7; i++) {
		basket.add(shop::scale<int, 3>(i));
		basket.add(shop::scale<long, 5>(i));
	}
	return basket.sum != 168;
}
