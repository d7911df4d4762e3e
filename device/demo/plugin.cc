// SPDX-License-Identifier: Apache-2.0
// libmemleak-demo.so: a shared library that keeps what it should give back.
#include <cstdlib>

#include "demo.h"

namespace plugin {

class Codec {
public:
	void probe(int streams);

private:
	void open_stream();
};

// Planted: plugin. Every second buffer is given back; the other ones are not.
DEMO_FRAME void Codec::open_stream()
{
	void *scratch = std::malloc(demo::plugin_leak.size);
	demo::keep(scratch);
	demo::keep(std::malloc(demo::plugin_leak.size));
	std::free(scratch);
}

DEMO_FRAME void Codec::probe(int streams)
{
	for (int i = 0; i < streams; i++)
		open_stream();
}

} // namespace plugin

extern "C" DEMO_FRAME __attribute__((visibility("default"))) void memleak_demo_plugin_run(int streams)
{
	plugin::Codec codec;
	codec.probe(streams);
	demo::keep(&codec);
}
