# The compiled engine of the unwinder, for the machine that unwinds: one freestanding shared object for every libc.
ENGINE         := unwind/engine/linux-x86_64.so
ENGINE_SOURCES := $(addprefix unwind/engine/,walk.c place.c rows.c entries.c)

ENGINE_CFLAGS := -std=c11 -O2 -fPIC -fwrapv -fno-sanitize=all -fvisibility=default -fno-plt $(WARNINGS) $(REPRO)

$(ENGINE): $(ENGINE_SOURCES) $(wildcard unwind/engine/*.h) ndk-build/engine.mk
	@echo "  CC     $@"
	@$(CC) -target x86_64-linux-gnu.2.17 -mcpu=x86_64 $(ENGINE_CFLAGS) -shared -nostdlib -s -Wl,-soname,$(@F) \
		$(ENGINE_SOURCES) -o $@.new && mv $@.new $@ && chmod 644 $@
