// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <thread>
#include <vector>

#include "demo.h"

namespace {

constexpr int WORKERS = 4;
constexpr double DEFAULT_SECONDS = 0.5;

} // namespace

namespace demo {

DEMO_FRAME void run_all(double seconds)
{
	std::vector<std::thread> workers;
	for (int role = 0; role < WORKERS; role++)
		workers.emplace_back(serve, role, seconds);
	load_scene();
	call_plugin();
	poke();
	draw_all();
	pump_events();
	build_form();
	both_roads();
	failed_calls();
	for (auto &worker : workers)
		worker.join();
}

} // namespace demo

// memleak-demo [SECONDS]: how long the honest traffic goes on; the leaks are the same for any time.
int main(int argc, char **argv)
{
	demo::run_all(argc > 1 ? std::atof(argv[1]) : DEFAULT_SECONDS);
	return 0;
}
