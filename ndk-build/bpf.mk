# The BPF objects: one per ABI, since the layout of pt_regs is the architecture's. The kernel's UAPI headers
# come with zig, bpf_helpers.h and bpf_tracing.h with libbpf.
# -fno-unwind-tables: libbpf does not know what to do with .eh_frame and says so at every load.
ZIG_INCLUDE := $(shell $(PYTHON) -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/lib/libc/include
BPF_SOURCES := $(wildcard device/bpf/*.bpf.c device/bpf/*/*.bpf.c)
BPF_NAMES   := $(notdir $(BPF_SOURCES:.bpf.c=))
vpath %.bpf.c $(sort $(dir $(BPF_SOURCES)))
# The instruction set: v3 has atomics that return a value (v5.12), v2 is what older kernels have.
BPF_CPU             := v3
BPF_CPU_memleak_old := v2
BPF_CPU_snoop_old   := v2
BPF_CFLAGS  := -target bpfel-freestanding-none -std=gnu11 -O2 -g -fno-unwind-tables -fno-stack-protector \
	-fno-sanitize=all $(WARNINGS) $(REPRO) -I device -I device/bpf -isystem $(B)/include

# Stripped of what the loader does not want. $(1) abi
define bpf_rules
$(BPF_NAMES:%=$(B)/$(1)/bpf/%.bpf.o): $(B)/$(1)/bpf/%.bpf.o: %.bpf.c ndk-build/bpf.mk ndk-build/abis.mk $(B)/include/.complete
	@echo "  BPF    $$@"
	@mkdir -p $$(@D)
	@$(CC) $(BPF_CFLAGS) -mcpu=$$(or $$(BPF_CPU_$$*),$$(BPF_CPU)) -isystem $(ZIG_INCLUDE)/$(uapi_$(1)) -isystem $(ZIG_INCLUDE)/any-linux-any \
		-D__TARGET_ARCH_$(bpfarch_$(1)) -MMD -MP -c $$< -o $$@

$(BPF_NAMES:%=$(B)/$(1)/bpf/%.stripped): $(B)/$(1)/bpf/%.stripped: $(B)/$(1)/bpf/%.bpf.o ndk-build/strip_dwarf.py
	@$(PYTHON) ndk-build/strip_dwarf.py $$< $$@
endef

# An agent that has no BPF programs, and says so. $(1) abi
define no_bpf_rules
$(BPF_NAMES:%=$(B)/$(1)/bpf/%.stripped): ndk-build/abis.mk
	@mkdir -p $$(@D)
	@: >$$@
endef
