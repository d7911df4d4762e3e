# The same binaries with the NDK's clang and bionic instead of zig's and musl. UNTRIED: there was no NDK to try it with.
#   make -f ndk-build/Makefile embedded ABIS="arm64-v8a armeabi-v7a x86_64"          (sources of the libraries, BPF objects)
#   $ANDROID_NDK_HOME/ndk-build NDK_PROJECT_PATH=build/ndk NDK_OUT=build/ndk/obj NDK_LIBS_OUT=build/ndk/libs \
#       APP_BUILD_SCRIPT=$PWD/ndk-build/Android.mk NDK_APPLICATION_MK=$PWD/ndk-build/Application.mk
# The output is in build/ndk/libs/ABI; MEMLEAKD and MEMLEAK_SHIM name it to the program.
MEMLEAK     := $(call my-dir)/..
LIBBPF      := $(MEMLEAK)/build/device/src/libbpf-1.1.2
ELFUTILS    := $(MEMLEAK)/build/device/src/elfutils-0.188
ZLIB        := $(MEMLEAK)/build/device/src/zlib-1.2.13.dfsg
OWN_FLAGS   := -std=gnu11 -D_GNU_SOURCE= -O2 -Wall -Wextra -Werror -fvisibility=hidden
THEIR_FLAGS := -O2 -w -ffunction-sections -fdata-sections

# Sources relative to LOCAL_PATH, as ndk-build wants them. $(1) patterns below the repository
sources_of = $(patsubst $(LOCAL_PATH)/%,%,$(wildcard $(addprefix $(LOCAL_PATH)/,$(1))))

include $(CLEAR_VARS)
LOCAL_PATH         := $(MEMLEAK)
LOCAL_MODULE       := memleak
LOCAL_SRC_FILES    := $(call sources_of,device/preload/*.c device/preload/*/*.c device/cfi/*.c)
LOCAL_C_INCLUDES   := $(MEMLEAK)/device $(MEMLEAK)/device/preload
LOCAL_CFLAGS       := $(OWN_FLAGS) -ffreestanding -fno-builtin -fno-stack-protector -fomit-frame-pointer \
	-fasynchronous-unwind-tables
LOCAL_LDFLAGS      := -nostdlib -Wl,--as-needed -Wl,--hash-style=both -Wl,-z,max-page-size=16384 -Wl,-z,nodelete -Wl,-Bsymbolic -Wl,-z,now
ifeq ($(TARGET_ARCH_ABI),arm64-v8a)
# Without landing pads (BTI): ndk-build has no step after the link that could do what drop_dynamic_tags.py does.
LOCAL_CFLAGS       += -mbranch-protection=pac-ret
endif
include $(BUILD_SHARED_LIBRARY)

include $(CLEAR_VARS)
LOCAL_PATH         := $(MEMLEAK)
LOCAL_MODULE       := memleak_zlib
LOCAL_SRC_FILES    := $(call sources_of,$(addprefix build/device/src/zlib-1.2.13.dfsg/,$(addsuffix .c,adler32 compress crc32 \
	deflate inffast inflate inftrees trees uncompr zutil gzclose gzlib gzread gzwrite)))
LOCAL_CFLAGS       := $(THEIR_FLAGS) -DHAVE_UNISTD_H
include $(BUILD_STATIC_LIBRARY)

include $(CLEAR_VARS)
LOCAL_PATH         := $(MEMLEAK)
LOCAL_MODULE       := memleak_elf
LOCAL_SRC_FILES    := $(call sources_of,$(addprefix build/device/src/elfutils-0.188/,libelf/*.c lib/crc32.c lib/next_prime.c))
LOCAL_C_INCLUDES   := $(MEMLEAK)/ndk-build/config/elfutils $(ELFUTILS)/lib $(ELFUTILS)/libelf $(ZLIB)
LOCAL_CFLAGS       := $(THEIR_FLAGS) -DHAVE_CONFIG_H
include $(BUILD_STATIC_LIBRARY)

include $(CLEAR_VARS)
LOCAL_PATH         := $(MEMLEAK)
LOCAL_MODULE       := memleak_bpf
LOCAL_SRC_FILES    := $(call sources_of,build/device/src/libbpf-1.1.2/src/*.c)
LOCAL_C_INCLUDES   := $(LIBBPF)/src $(LIBBPF)/include $(LIBBPF)/include/uapi $(ELFUTILS)/libelf $(ZLIB)
LOCAL_CFLAGS       := $(THEIR_FLAGS) -D_LARGEFILE64_SOURCE -D_FILE_OFFSET_BITS=64
include $(BUILD_STATIC_LIBRARY)

include $(CLEAR_VARS)
LOCAL_PATH         := $(MEMLEAK)
LOCAL_MODULE       := memleakd
LOCAL_SRC_FILES    := $(call sources_of,device/agent/*.c device/agent/*/*.c device/cfi/*.c build/device/$(TARGET_ARCH_ABI)/bpf/embed_*.S)
LOCAL_C_INCLUDES   := $(MEMLEAK)/device $(MEMLEAK)/device/agent $(MEMLEAK)/build/device/include $(ELFUTILS)/libelf $(ZLIB)
LOCAL_CFLAGS       := $(OWN_FLAGS)
LOCAL_ASFLAGS      := -I$(MEMLEAK)
LOCAL_LDFLAGS      := -static -Wl,-z,max-page-size=65536
LOCAL_STATIC_LIBRARIES := memleak_bpf memleak_elf memleak_zlib
include $(BUILD_EXECUTABLE)
