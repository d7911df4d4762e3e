# libmemleak.so for ndk-build (docs/use/linked-in.md):
#   include $(shell memleak-android sdk)/Android.mk
#   …
#   LOCAL_SHARED_LIBRARIES := memleak
# The NDK names shared libraries of modules before libc to the linker, which is the order that is needed.
MEMLEAK_SDK_CALLER := $(LOCAL_PATH)
LOCAL_PATH := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
include $(CLEAR_VARS)
LOCAL_MODULE            := memleak
LOCAL_SRC_FILES         := ../$(TARGET_ARCH_ABI)/libmemleak.so
LOCAL_EXPORT_C_INCLUDES := $(LOCAL_PATH)
include $(PREBUILT_SHARED_LIBRARY)
LOCAL_PATH := $(MEMLEAK_SDK_CALLER)
