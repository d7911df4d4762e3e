// SPDX-License-Identifier: Apache-2.0
// The leaks of the main thread, each reached over several frames that the optimiser may not merge.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "demo.h"

namespace demo {

// Planted: texture.
DEMO_INLINED void *aligned_block(std::size_t bytes)
{
	void *block = nullptr;
	if (posix_memalign(&block, 64, bytes) != 0)
		return nullptr;
	return block;
}

DEMO_FRAME static void load_texture()
{
	keep(aligned_block(texture_leak.size));
}

// Planted: mesh.
DEMO_FRAME static void make_mesh()
{
	keep(new char[mesh_leak.size]);
}

DEMO_FRAME static void load_model()
{
	make_mesh();
	keep(nullptr);
}

DEMO_FRAME void load_scene()
{
	for (std::size_t i = rounds(texture_leak.objects); i > 0; i--)
		load_texture();
	for (std::size_t i = rounds(mesh_leak.objects); i > 0; i--)
		load_model();
}

// Planted: plugin (in the shared library).
DEMO_FRAME void call_plugin()
{
	memleak_demo_plugin_run(static_cast<int>(plugin_leak.objects));
	keep(nullptr);
}

// Planted: signal. raise() delivers to this thread before it returns, and not from inside the allocator.
DEMO_FRAME static void note_signal()
{
	keep(std::malloc(signal_leak.size));
}

DEMO_FRAME static void on_signal(int)
{
	note_signal();
	keep(nullptr);
}

DEMO_FRAME static void ring_bell()
{
	std::raise(SIGUSR1);
	keep(nullptr);
}

DEMO_FRAME void poke()
{
	struct sigaction action = {};
	action.sa_handler = on_signal;
	sigaction(SIGUSR1, &action, nullptr);
	for (std::size_t i = rounds(signal_leak.objects); i > 0; i--)
		ring_bell();
}

// Planted: frame.
DEMO_FRAME static void new_frame()
{
	keep(std::malloc(frame_leak.size));
}

DEMO_FRAME static void render()
{
	new_frame();
	keep(nullptr);
}

DEMO_FRAME void draw_all()
{
	for (std::size_t i = rounds(frame_leak.objects); i > 0; i--)
		render();
}

// Planted: callback.
DEMO_FRAME static void on_click()
{
	keep(std::malloc(callback_leak.size));
}

struct Widget {
	virtual ~Widget() = default;
	virtual void fire() = 0;
};

struct Button final : Widget {
	void (*handler)() = on_click;
	void fire() override;
};

DEMO_FRAME void Button::fire()
{
	handler();
	keep(this);
}

DEMO_FRAME static void dispatch(Widget &widget)
{
	widget.fire();
	keep(&widget);
}

DEMO_FRAME void pump_events()
{
	std::unique_ptr<Widget> button = std::make_unique<Button>();
	for (std::size_t i = rounds(callback_leak.objects); i > 0; i--)
		dispatch(*button);
}

// Planted: label.
DEMO_FRAME static void copy_label(const char *text)
{
	keep(strdup(text));
}

DEMO_FRAME static void name_widget()
{
	char text[label_leak.size] = {};
	std::memset(text, 'x', sizeof text - 1);
	copy_label(text);
}

DEMO_FRAME void build_form()
{
	for (std::size_t i = rounds(label_leak.objects); i > 0; i--)
		name_widget();
}

// Planted: road_left and road_right. Innermost frames, return addresses and depth are the same.
DEMO_FRAME static void shared_end(std::size_t bytes)
{
	keep(std::malloc(bytes));
}

DEMO_FRAME static void shared_middle(std::size_t bytes)
{
	shared_end(bytes);
	keep(nullptr);
}

DEMO_FRAME static void left_road()
{
	shared_middle(road_left_leak.size);
	keep(nullptr);
}

DEMO_FRAME static void right_road()
{
	shared_middle(road_right_leak.size);
	keep(nullptr);
}

DEMO_FRAME void both_roads()
{
	for (std::size_t i = rounds(road_left_leak.objects); i > 0; i--)
		left_road();
	for (std::size_t i = rounds(road_right_leak.objects); i > 0; i--)
		right_road();
}

} // namespace demo
