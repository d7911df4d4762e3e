/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The frame that the kernel makes on the stack for a signal handler, in words from its uc_stack on, which holds the bounds
 * of the thread's alternate stack. ML_SIGNAL_WORDS: up to the last saved register. ML_SIGNAL_BEGIN: words below uc_stack,
 * where the stack pointer is when the handler has returned to the code that restores the registers.
 */
#pragma once

#if defined(__x86_64__) || defined(__TARGET_ARCH_x86) /* struct rt_sigframe, arch/x86/include/asm/sigframe.h */

#define ML_SIGNAL_FP 13
#define ML_SIGNAL_SP 18
#define ML_SIGNAL_PC 19
#define ML_SIGNAL_WORDS 26
#define ML_SIGNAL_BEGIN 2

#elif defined(__aarch64__) || defined(__TARGET_ARCH_arm64) /* struct rt_sigframe, arch/arm64/kernel/signal.c */

#define ML_SIGNAL_FP 50
#define ML_SIGNAL_SP 52
#define ML_SIGNAL_PC 53
#define ML_SIGNAL_WORDS 55
#define ML_SIGNAL_BEGIN 18

#elif defined( \
	__arm__) /* struct sigframe, arch/arm/kernel/signal.h, which may follow a siginfo: no walk by rules goes through it */

#define ML_SIGNAL_FP 17
#define ML_SIGNAL_SP 19
#define ML_SIGNAL_PC 21
#define ML_SIGNAL_WORDS 23
#define ML_SIGNAL_BEGIN 2

#endif
