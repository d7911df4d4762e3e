# The compiled engine of the unwinder, for the machines that unwind: freestanding shared objects, one for every libc.
ENGINE         := $(addprefix unwind/engine/,linux-x86_64.so linux-aarch64.so darwin-x86_64.so darwin-arm64.so)
ENGINE_SOURCES := $(addprefix unwind/engine/,walk.c frames.c rows.c) device/cfi/program.c

ENGINE_CFLAGS := -std=c11 -O2 -fPIC -fwrapv -fno-sanitize=all -fvisibility=default $(WARNINGS) $(REPRO) -I device

unwind/engine/linux-x86_64.so:  ENGINE_TARGET := x86_64-linux-gnu.2.17 -mcpu=x86_64 -fno-plt -Wl,-soname,linux-x86_64.so
unwind/engine/linux-aarch64.so: ENGINE_TARGET := aarch64-linux-gnu.2.17 -Wl,-soname,linux-aarch64.so
unwind/engine/darwin-x86_64.so: ENGINE_TARGET := x86_64-macos
unwind/engine/darwin-arm64.so:  ENGINE_TARGET := aarch64-macos

$(ENGINE): $(ENGINE_SOURCES) $(wildcard unwind/engine/*.h device/cfi/*.h) ndk-build/engine.mk
	@echo "  CC     $@"
	@$(CC) -target $(ENGINE_TARGET) $(ENGINE_CFLAGS) -shared -nostdlib -s $(ENGINE_SOURCES) -o $@.new && \
		mv $@.new $@ && chmod 644 $@
