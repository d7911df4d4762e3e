/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#define ML_AGENT_VERSION "0.1.0"

#if defined(__x86_64__)
#define ML_AGENT_ARCH ML_ARCH_X86_64
#elif defined(__aarch64__)
#define ML_AGENT_ARCH ML_ARCH_ARM64
#elif defined(__arm__)
#define ML_AGENT_ARCH ML_ARCH_ARM32
#elif defined(__i386__)
#define ML_AGENT_ARCH ML_ARCH_I386
#else
#error "an architecture that wire.h does not know"
#endif
