// SPDX-License-Identifier: Apache-2.0
// The library of an app on real bionic: C++ without a C++ runtime, as there is none to go with this libc. It includes no
// header, because there are none for bionic either. What it leaks per run stands in tests/emulator/phone/bionic.py, LEAKS.
typedef __SIZE_TYPE__ size_t;
typedef long thread_id; // bionic/libc/include/bits/pthread_types.h

extern "C" {
void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *block, size_t size);
void free(void *block);
int pthread_create(thread_id *thread, const void *attributes, void *(*start)(void *), void *argument);
int pthread_join(thread_id thread, void **result);
}

#define FRAME __attribute__((noinline))

void *operator new(size_t size)
{
	void *block = malloc(size);
	asm volatile("" : : "r"(block) : "memory"); // a frame of its own, not a jump to malloc
	return block;
}
void operator delete(void *block) noexcept
{
	free(block);
}
void operator delete(void *block, size_t) noexcept
{
	free(block);
}

namespace app {

void keep(void *block)
{
	asm volatile("" : : "r"(block) : "memory");
}

struct Tile {
	char pixels[211];
};

class Layer {
public:
	virtual void draw(int tiles) = 0;
};

class Map : public Layer {
public:
	FRAME void draw(int tiles) override
	{
		for (int i = 0; i < tiles; i++)
			keep(new Tile);
	}
};

FRAME void render(Layer &layer)
{
	layer.draw(23);
	keep(&layer);
}

FRAME void decode(int packets)
{
	for (int i = 0; i < packets; i++) {
		void *scratch = malloc(1009);
		keep(malloc(1009));
		free(scratch);
	}
}

FRAME void *receive(void *)
{
	decode(19);
	return nullptr;
}

FRAME void journal(int entries)
{
	for (int i = 0; i < entries; i++) {
		void *text = nullptr;
		for (size_t size = 1; size <= 4; size++)
			text = realloc(text, size == 4 ? 4099 : size * 509);
		keep(text);
	}
}

FRAME void load()
{
	keep(calloc(17, 127));
	journal(7);
}

} // namespace app

__attribute__((visibility("default"))) int main(int, char **)
{
	thread_id workers[2];
	app::Map map;
	for (thread_id &worker : workers)
		pthread_create(&worker, nullptr, app::receive, nullptr);
	app::render(map);
	app::load();
	for (thread_id worker : workers)
		pthread_join(worker, nullptr);
	return 0;
}
