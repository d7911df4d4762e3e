// SPDX-License-Identifier: Apache-2.0
// A small program that leaks on purpose: demo.json lists every planted leak; all else is freed before exit.
#pragma once

#include <cstddef>

#include "planted.h" // generated from demo.json: struct Leak { objects, size } and one constant per leak

// A function that keeps its own frame: neither inlined, nor cloned, nor split by the optimiser.
#if __has_attribute(noipa)
#define DEMO_FRAME __attribute__((noipa))
#else
#define DEMO_FRAME __attribute__((noinline))
#endif
// A function whose frame exists in the debug information only.
#define DEMO_INLINED __attribute__((always_inline)) inline

namespace demo
{

// The compiler may drop an allocation whose result is unused.
inline void keep(void *block)
{
	asm volatile("" : : "g"(block) : "memory");
}

// A count that the compiler does not know: an unrolled loop would have one call site per round.
inline std::size_t rounds(std::size_t count)
{
	asm volatile("" : "+r"(count));
	return count;
}

void run_all(double seconds);

void serve(int role, double seconds); // start of each worker thread
void load_scene();
void call_plugin();
void poke();
void draw_all();
void pump_events();
void build_form();
void both_roads();

void honest_traffic(unsigned seed, double seconds);
void failed_calls();

} // namespace demo

extern "C" void memleak_demo_plugin_run(int streams);
