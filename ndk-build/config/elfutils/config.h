/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What elfutils' configure would find out, for libelf alone on musl: the parts it guards by these names.
 */
#ifndef MEMLEAK_ELFUTILS_CONFIG_H
#define MEMLEAK_ELFUTILS_CONFIG_H

#define PACKAGE "elfutils"
#define PACKAGE_NAME "elfutils"
#define _GNU_SOURCE 1

#define HAVE_DECL_MEMPCPY 1
#define HAVE_DECL_MEMRCHR 1
#define HAVE_DECL_POWEROF2 1
#define HAVE_DECL_RAWMEMCHR 0
#define HAVE_DECL_REALLOCARRAY 1
#define HAVE_ERR_H 1
#define HAVE_FALLTHROUGH 1
#define HAVE_GCC_STRUCT 1
#define HAVE_VISIBILITY 1

/* The agent reads an ELF file in one thread: libelf without its locks. */
#undef USE_LOCKS

#include <eu-config.h>

#endif
