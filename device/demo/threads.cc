// SPDX-License-Identifier: Apache-2.0
// The leaks of the worker threads: packet (two threads share it), grid, journal.
#include <cstdlib>
#include <cstring>

#include "demo.h"

namespace demo {

struct Packet {
	const char *payload;
	std::size_t bytes;
};

// Planted: packet.
DEMO_INLINED void *copy_payload(const Packet &packet)
{
	void *copy = std::malloc(packet.bytes);
	if (copy)
		std::memcpy(copy, packet.payload, packet.bytes);
	return copy;
}

DEMO_FRAME static bool decode_packet(const Packet &packet)
{
	void *copy = copy_payload(packet);
	keep(copy);
	return copy != nullptr;
}

class Session {
public:
	explicit Session(std::size_t packets) : left(packets) {}
	void loop();

private:
	void on_packet(const Packet &packet);

	std::size_t left;
	std::size_t decoded = 0;
};

DEMO_FRAME void Session::on_packet(const Packet &packet)
{
	decoded += decode_packet(packet);
}

DEMO_FRAME void Session::loop()
{
	static const char payload[packet_leak.size] = {};
	while (left--)
		on_packet({payload, sizeof payload});
	keep(&decoded);
}

// Planted: grid. The table of rows is freed, the rows are not.
DEMO_FRAME static void *make_row(std::size_t cells)
{
	void *row = std::calloc(cells, 1);
	keep(row);
	return row;
}

DEMO_FRAME static void make_grid(std::size_t rows, std::size_t cells)
{
	void **table = static_cast<void **>(std::calloc(rows, sizeof *table));
	for (std::size_t i = 0; table && i < rows; i++)
		table[i] = make_row(cells);
	keep(table);
	std::free(table);
}

DEMO_FRAME static void load_level()
{
	make_grid(grid_leak.objects, grid_leak.size);
	keep(nullptr);
}

DEMO_FRAME static void load_game()
{
	load_level();
	keep(nullptr);
}

// Planted: journal. Each one grows to its size in four steps.
class Journal {
public:
	void append(std::size_t bytes);

private:
	void grow(std::size_t bytes);

	void *text = nullptr;
	std::size_t used = 0;
};

DEMO_FRAME void Journal::grow(std::size_t bytes)
{
	void *larger = std::realloc(text, bytes);
	keep(larger);
	if (larger)
		text = larger;
}

DEMO_FRAME void Journal::append(std::size_t bytes)
{
	used += bytes;
	grow(used);
}

DEMO_FRAME static void write_journal()
{
	constexpr std::size_t step = journal_leak.size / 4;
	Journal journal;
	for (std::size_t part = rounds(4); part > 0; part--)
		journal.append(part > 1 ? step : journal_leak.size - 3 * step);
	keep(&journal);
}

DEMO_FRAME static void checkpoint()
{
	for (std::size_t i = rounds(journal_leak.objects); i > 0; i--)
		write_journal();
}

DEMO_FRAME void serve(int role, double seconds)
{
	constexpr std::size_t half = packet_leak.objects / 2;
	honest_traffic(static_cast<unsigned>(role), seconds / 2);
	if (role < 2)
		Session(role == 0 ? half : packet_leak.objects - half).loop();
	else if (role == 2)
		load_game();
	else
		checkpoint();
	honest_traffic(static_cast<unsigned>(role) + 100, seconds / 2);
}

} // namespace demo
