# The example app as ndk-build's modules. MEMLEAK_SDK: what `memleak-android sdk` prints.
LOCAL_PATH := $(call my-dir)
include $(MEMLEAK_SDK)/Android.mk
include $(CLEAR_VARS)
LOCAL_MODULE := app
LOCAL_SRC_FILES := app.c
LOCAL_SHARED_LIBRARIES := memleak
include $(BUILD_EXECUTABLE)
