# For the NDK's own ndk-build: see Android.mk.
APP_ABI      := arm64-v8a armeabi-v7a x86_64
APP_PLATFORM := android-23
APP_STL      := none
APP_SUPPORT_FLEXIBLE_PAGE_SIZES := true
