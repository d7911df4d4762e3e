# libmemleak.so for CMake, Android's or this machine's (docs/use/linked-in.md):
#   find_package(memleak CONFIG REQUIRED PATHS "<what `memleak-android sdk` prints>" NO_DEFAULT_PATH)
#   target_link_libraries(app PRIVATE memleak::memleak)
# CMake names libraries of targets before libc to the linker, which is the order that is needed.
if(ANDROID_ABI)
  set(_memleak_abi "${ANDROID_ABI}")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(_memleak_abi x86_64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(_memleak_abi arm64-v8a)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^arm")
  set(_memleak_abi armeabi-v7a)
endif()

get_filename_component(_memleak_library "${CMAKE_CURRENT_LIST_DIR}/../${_memleak_abi}/libmemleak.so" ABSOLUTE)
if(NOT EXISTS "${_memleak_library}")
  set(memleak_FOUND FALSE)
  set(memleak_NOT_FOUND_MESSAGE "there is no ${_memleak_library}: this installation has no library for ${_memleak_abi}")
elseif(NOT TARGET memleak::memleak)
  add_library(memleak::memleak SHARED IMPORTED)
  set_target_properties(memleak::memleak PROPERTIES
    IMPORTED_LOCATION "${_memleak_library}"
    IMPORTED_SONAME libmemleak.so
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
endif()
unset(_memleak_abi)
unset(_memleak_library)
