// SPDX-License-Identifier: Apache-2.0
// Honest work beside the leaks: everything allocated here is freed here, by this thread or by another one.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "demo.h"

namespace {

constexpr std::size_t CACHE_ENTRIES = 64;
constexpr std::size_t HANDED_OVER = 32;

struct Random {
	std::uint32_t state;
	std::uint32_t below(std::uint32_t limit)
	{
		state = state * 1664525u + 1013904223u;
		return (state >> 8) % limit;
	}
};

// Blocks that one thread allocates and another one frees.
class Exchange {
public:
	~Exchange()
	{
		for (void *block : blocks)
			std::free(block);
	}
	void *swap(void *block, std::size_t slot)
	{
		std::lock_guard<std::mutex> guard(lock);
		std::swap(blocks[slot], block);
		return block;
	}

private:
	std::mutex lock;
	void *blocks[HANDED_OVER] = {};
};

Exchange exchange; // freed by the destructor, at exit

void short_lived(Random &random)
{
	void *blocks[16];
	for (void *&block : blocks) {
		block = std::malloc(1 + random.below(2000));
		demo::keep(block);
	}
	for (void *block : blocks)
		std::free(block);
}

void realloc_chain(Random &random)
{
	void *block = nullptr;
	for (int step = 0; step < 12; step++) {
		void *larger = std::realloc(block, 1 + random.below(100000));
		demo::keep(larger);
		if (larger)
			block = larger;
	}
	std::free(block);
}

void use_cache(std::map<std::uint32_t, std::string> &cache, Random &random)
{
	cache[random.below(1000)] = std::string(20 + random.below(200), 'c');
	while (cache.size() > CACHE_ENTRIES)
		cache.erase(cache.begin());
}

void hand_over(Random &random)
{
	void *block = std::malloc(1 + random.below(500));
	demo::keep(block);
	std::free(exchange.swap(block, random.below(HANDED_OVER)));
}

} // namespace

namespace demo {

DEMO_FRAME void honest_traffic(unsigned seed, double seconds)
{
	using clock = std::chrono::steady_clock;
	const auto end = clock::now() + std::chrono::duration<double>(seconds);
	Random random{seed * 2654435761u + 1};
	std::map<std::uint32_t, std::string> cache;
	do {
		short_lived(random);
		realloc_chain(random);
		hand_over(random);
		use_cache(cache, random);
	} while (clock::now() < end);
}

// Calls that fail must neither appear as a leak nor hide one.
DEMO_FRAME void failed_calls()
{
	volatile std::size_t huge = SIZE_MAX / 2;
	void *block = std::malloc(1013);
	keep(std::malloc(huge));
	keep(std::calloc(huge, 4));
	void *refused = std::realloc(block, huge);
	keep(refused);
	void *untouched = nullptr;
	volatile std::size_t odd_alignment = 24;
	keep(posix_memalign(&untouched, odd_alignment, 4242) != 0 ? nullptr : untouched);
	std::free(refused ? refused : block);
}

} // namespace demo
