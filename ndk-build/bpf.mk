# The BPF objects: one per ABI, since the layout of pt_regs is the architecture's. The kernel's UAPI headers
# come with zig, bpf_helpers.h and bpf_tracing.h with libbpf.
# -fno-unwind-tables: libbpf does not know what to do with .eh_frame and says so at every load.
ZIG_INCLUDE := $(shell $(PYTHON) -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/lib/libc/include
BPF_SOURCES := $(wildcard device/bpf/*.bpf.c)
BPF_NAMES   := $(patsubst device/bpf/%.bpf.c,%,$(BPF_SOURCES))
# The instruction set: v3 has atomics that return a value (v5.12), v2 is what older kernels have.
BPF_CPU             := v3
BPF_CPU_memleak_old := v2
BPF_CFLAGS  := -target bpfel-freestanding-none -std=gnu11 -O2 -g -fno-unwind-tables -fno-stack-protector \
	-fno-sanitize=all $(WARNINGS) $(REPRO) -I device -I device/bpf -isystem $(B)/include
