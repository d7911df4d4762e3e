# Files for programs that link libmemleak.so themselves: header and imports, beside the libraries of all ABIs.
SDK         := $(PREBUILT)/sdk
SDK_OUTPUTS := $(addprefix $(SDK)/,memleak.h Android.mk memleak-config.cmake)

$(SDK)/memleak.h: device/preload/include/memleak.h
	@mkdir -p $(@D)
	@cp $< $@

$(SDK)/%: ndk-build/sdk/%
	@mkdir -p $(@D)
	@cp $< $@
