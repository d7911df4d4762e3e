# The agent under ASan and UBSan, by gcc: zig has no run-time library of ASan. The shim under UBSan, whose findings are traps:
# it has no libc that could print them. Of this machine, beside the other builds: `make sanitize` runs tests with them.
S := $(B)/sanitized

KERNEL_HEADERS = -isystem $(ZIG_INCLUDE)/$(uapi_x86_64) -isystem $(ZIG_INCLUDE)/any-linux-any
SANITIZED_AGENT = $(subst -fno-sanitize=all,-fsanitize=address$(comma)undefined,$(filter-out -O2 -Werror,$(AGENT_CFLAGS))) \
	-O1 -w -fsanitize-undefined-trap-on-error -fno-omit-frame-pointer $(KERNEL_HEADERS)
SANITIZED_SHIM = $(subst -fno-sanitize=all,-fsanitize=undefined -fsanitize-trap=undefined,$(SHIM_CFLAGS)) -Wno-macro-redefined
comma := ,

# Objects by gcc, named by their paths. $(1) folder, $(2) flags, $(3) shell words that list the sources
define gcc_objects
@mkdir -p $(1)
@printf '%s\n' $(3) | xargs -P $(JOBS) -I SOURCE sh -c 'gcc $(2) -c SOURCE -o $(1)/$$(echo SOURCE | tr / _).o'
endef

$(S)/libraries.a: $(STAMP) ndk-build/sanitize.mk $(B)/include/.complete
	@echo "  LIB    $@"
	$(call gcc_objects,$(S)/libraries,$(LIBRARY_CFLAGS) $(libbpf_CFLAGS),$(LIBBPF)/src/*.c)
	$(call gcc_objects,$(S)/libraries,$(LIBRARY_CFLAGS) $(libelf_CFLAGS),$(ELFUTILS)/libelf/*.c $(ELFUTILS)/lib/crc32.c $(ELFUTILS)/lib/next_prime.c)
	$(call gcc_objects,$(S)/libraries,$(LIBRARY_CFLAGS) $(zlib_CFLAGS),$(addprefix $(ZLIB)/,$(addsuffix .c,$(ZLIB_NAMES))))
	@ar rcs $@ $(S)/libraries/*.o

$(S)/memleakd: $(AGENT_SOURCES) $(CFI_NAMES:%=device/cfi/%.c) $(wildcard device/*.h device/*/*.h device/*/*/*.h) ndk-build/sanitize.mk \
		$(BPF_NAMES:%=$(B)/x86_64/bpf/embed_%.o) $(S)/libraries.a
	@echo "  GCC    $@"
	$(call gcc_objects,$(S)/agent,$(SANITIZED_AGENT),$(filter %.c,$^))
	@gcc -fsanitize=address,undefined $(S)/agent/*.o $(filter %.o %.a,$^) -o $@

$(foreach room,preload cfi,$(eval $(call object_rules,sanitized,$(room),$(shim_x86_64) $(cpu_x86_64) $(SANITIZED_SHIM))))

$(S)/libmemleak.so: $(patsubst device/%.c,$(S)/%.o,$(SHIM_SOURCES) $(CFI_NAMES:%=device/cfi/%.c))
	@echo "  LINK   $@"
	@$(CC) -target $(shim_x86_64) $(cpu_x86_64) $(SANITIZED_SHIM) $(SHIM_LDFLAGS) $^ -o $@

.PHONY: sanitized
sanitized: $(S)/memleakd $(S)/libmemleak.so
