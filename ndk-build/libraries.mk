# The three libraries inside the agent. Their own warnings are theirs: -w.

# libbpf's headers are included as <bpf/…>.
$(B)/include/.complete: $(STAMP)
	@mkdir -p $(B)/include
	@ln -sfn $(abspath $(LIBBPF))/src $(B)/include/bpf
	@touch $@

# gz*: libbpf reads /proc/config.gz.
ZLIB_NAMES := adler32 compress crc32 deflate inffast inflate inftrees trees uncompr zutil gzclose gzlib gzread gzwrite
LIBRARY_CFLAGS := -O2 -g0 -w -fno-sanitize=all -ffunction-sections -fdata-sections $(REPRO)

zlib_CFLAGS   := -I $(ZLIB) -DHAVE_UNISTD_H
libelf_CFLAGS := -DHAVE_CONFIG_H -I ndk-build/config/elfutils -I $(ELFUTILS)/lib -I $(ELFUTILS)/libelf -I $(ZLIB)
libbpf_CFLAGS := -I $(LIBBPF)/src -I $(LIBBPF)/include -I $(LIBBPF)/include/uapi -I $(ELFUTILS)/libelf -I $(ZLIB) \
	-D_LARGEFILE64_SOURCE -D_FILE_OFFSET_BITS=64

# The names of the sources are known only after unpacking, so a library is one rule that compiles all.
# $(1) abi, $(2) library, $(3) shell words that list its sources
define library_rule
$(B)/$(1)/$(2).a: $(STAMP) ndk-build/libraries.mk ndk-build/abis.mk $(wildcard ndk-build/config/*/*)
	@echo "  LIB    $$@"
	@rm -rf $(B)/$(1)/$(2) $$@ && mkdir -p $(B)/$(1)/$(2)
	@printf '%s\n' $(3) | xargs -P $(JOBS) -I SOURCE sh -c '$(CC) -target $(zig_$(1)) $(cpu_$(1)) \
		$(LIBRARY_CFLAGS) $($(2)_CFLAGS) -c SOURCE -o $(B)/$(1)/$(2)/$$$$(basename SOURCE .c).o'
	@$(AR) rcsD $$@ $(B)/$(1)/$(2)/*.o
endef

AGENT_CFLAGS := -std=gnu11 -D_GNU_SOURCE= -O2 -g $(WARNINGS) -fno-sanitize=all -fvisibility=hidden $(REPRO) -I device -I device/agent \
	-isystem $(B)/include -isystem $(ELFUTILS)/libelf -isystem $(ZLIB)
# Segments aligned for every page size that there is (Android: 4 and 16 KiB).
AGENT_LDFLAGS := -static -s -Wl,-z,max-page-size=65536 -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,--build-id=sha1

# The shim: no libc, no start files, nothing undefined but what the target's own libraries give weakly.
# -z nodelete: dlclose() of a hooked library must not unmap code that is on a thread's stack. -Bsymbolic: what it names
# of its own is its own, also where it was brought in by dlopen() and does not interpose.
SHIM_CFLAGS := -flto -std=gnu11 -D_GNU_SOURCE -O2 -g $(WARNINGS) -ffreestanding -fno-builtin -fPIC -fvisibility=hidden -fno-stack-protector \
	-fno-sanitize=all -fasynchronous-unwind-tables -fomit-frame-pointer $(REPRO) -I device -I device/preload
SHIM_LDFLAGS := -flto -shared -nostdlib -s -Wl,-soname,libmemleak.so -Wl,--hash-style=both -Wl,-z,max-page-size=16384 \
	-Wl,-z,nodelete -Wl,-Bsymbolic -Wl,-z,now -Wl,-z,defs -Wl,--build-id=sha1

# $(1) abi, $(2) agent | cfi | preload, $(3) flags
define object_rules
$(B)/$(1)/$(2)/%.o: device/$(2)/%.c ndk-build/Makefile ndk-build/libraries.mk ndk-build/abis.mk $(B)/include/.complete
	@echo "  CC     $$@"
	@mkdir -p $$(@D)
	@$(CC) -target $(3) $(cpu_$(1)) -MMD -MP -c $$< -o $$@
endef

# CFI as the shim reads it, compiled as the shim is. $(1) abi
define shim_cfi_rules
$(B)/$(1)/shim_cfi/%.o: device/cfi/%.c ndk-build/Makefile ndk-build/libraries.mk ndk-build/abis.mk $(B)/include/.complete
	@echo "  CC     $$@"
	@mkdir -p $$(@D)
	@$(CC) -target $(shim_$(1)) $(cpu_$(1)) $(protect_$(1)) $(SHIM_CFLAGS) -U_GNU_SOURCE -MMD -MP -c $$< -o $$@
endef

# $(1) abi
define abi_rules
$(call library_rule,$(1),zlib,$(addprefix $(ZLIB)/,$(addsuffix .c,$(ZLIB_NAMES))))
$(call library_rule,$(1),libelf,$(ELFUTILS)/libelf/*.c $(ELFUTILS)/lib/crc32.c $(ELFUTILS)/lib/next_prime.c)
$(call library_rule,$(1),libbpf,$(LIBBPF)/src/*.c)
$(call object_rules,$(1),agent,$(zig_$(1)) $(AGENT_CFLAGS))
$(call object_rules,$(1),preload,$(shim_$(1)) $(protect_$(1)) $(SHIM_CFLAGS))
$(call object_rules,$(1),cfi,$(zig_$(1)) $(AGENT_CFLAGS))
$(call shim_cfi_rules,$(1))

$(call $(if $(bpfarch_$(1)),bpf_rules,no_bpf_rules),$(1))

# The object inside the agent: ml_bpf_NAME_start … ml_bpf_NAME_end, aligned as ELF needs, and ml_bpf_NAME_bytes.
$(BPF_NAMES:%=$(B)/$(1)/bpf/embed_%.S): $(B)/$(1)/bpf/embed_%.S: $(B)/$(1)/bpf/%.stripped ndk-build/libraries.mk
	@printf '.section .rodata\n.balign 16\n.global ml_bpf_%s_start\nml_bpf_%s_start:\n.incbin "%s"\n.global ml_bpf_%s_end\nml_bpf_%s_end:\n.byte 0\n.balign 4\n.global ml_bpf_%s_bytes\nml_bpf_%s_bytes:\n.long ml_bpf_%s_end - ml_bpf_%s_start\n.section .note.GNU-stack,"",%%progbits\n' \
		$$* $$* $$< $$* $$* $$* $$* $$* $$* >$$@

$(BPF_NAMES:%=$(B)/$(1)/bpf/embed_%.o): %.o: %.S
	@$(CC) -target $(zig_$(1)) $(cpu_$(1)) -c $$< -o $$@

$(PREBUILT)/$(1)/memleakd: $(patsubst device/agent/%.c,$(B)/$(1)/agent/%.o,$(AGENT_SOURCES)) \
		$(CFI_NAMES:%=$(B)/$(1)/cfi/%.o) \
		$(BPF_NAMES:%=$(B)/$(1)/bpf/embed_%.o) $(B)/$(1)/libbpf.a $(B)/$(1)/libelf.a $(B)/$(1)/zlib.a
	@echo "  LINK   $$@"
	@mkdir -p $$(@D)
	@$(CC) -target $(zig_$(1)) $(cpu_$(1)) $(AGENT_LDFLAGS) $$^ -o $$@.new && mv $$@.new $$@

$(PREBUILT)/$(1)/libmemleak.so: $(patsubst device/preload/%.c,$(B)/$(1)/preload/%.o,$(SHIM_SOURCES)) \
		$(CFI_NAMES:%=$(B)/$(1)/shim_cfi/%.o)
	@echo "  LINK   $$@"
	@mkdir -p $$(@D)
	@$(CC) -target $(shim_$(1)) $(cpu_$(1)) $(protect_$(1)) $(SHIM_LDFLAGS) $$^ -o $$@.new
	@$(if $(drop_tags_$(1)),$(PYTHON) ndk-build/drop_dynamic_tags.py $$@.new $(drop_tags_$(1)))
	@mv $$@.new $$@
endef

# What each object includes, written by the compiler beside it.
-include $(wildcard $(B)/*/*/*.d $(B)/*/*/*/*.d)
