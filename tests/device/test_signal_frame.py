"""device/signal_frame.h against the C library's mirror of the kernel's structures."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.gcc import DEVICE

SOURCE = """
#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>
#include "signal_frame.h"
#define WORD sizeof(long)
#define IS(number, field) _Static_assert(offsetof(ucontext_t, field) == offsetof(ucontext_t, uc_stack) + (number) * WORD, #number)
_Static_assert(offsetof(stack_t, ss_size) == 2 * WORD, "ss_size");
#if defined(__x86_64__)
IS(ML_SIGNAL_FP, uc_mcontext.gregs[REG_RBP]);
IS(ML_SIGNAL_SP, uc_mcontext.gregs[REG_RSP]);
IS(ML_SIGNAL_PC, uc_mcontext.gregs[REG_RIP]);
IS(ML_SIGNAL_WORDS, uc_mcontext.gregs[NGREG]);
IS(-ML_SIGNAL_BEGIN, uc_flags); /* the handler's return address was below */
#elif defined(__aarch64__)
IS(ML_SIGNAL_FP, uc_mcontext.regs[29]);
IS(ML_SIGNAL_SP, uc_mcontext.sp);
IS(ML_SIGNAL_PC, uc_mcontext.pc);
IS(ML_SIGNAL_WORDS - 1, uc_mcontext.pstate);
_Static_assert(ML_SIGNAL_BEGIN * WORD == sizeof(siginfo_t) + offsetof(ucontext_t, uc_stack), "begin");
#else
IS(ML_SIGNAL_FP, uc_mcontext.arm_fp);
IS(ML_SIGNAL_SP, uc_mcontext.arm_sp);
IS(ML_SIGNAL_PC, uc_mcontext.arm_pc);
IS(ML_SIGNAL_WORDS - 1, uc_mcontext.arm_cpsr);
#endif
"""


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc", "arm-linux-gnueabihf-gcc"])
def test_saved_registers_are_where_the_kernel_puts_them(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    argv = [compiler, "-std=gnu11", "-fsyntax-only", f"-I{DEVICE}", "-x", "c", "-"]
    done = subprocess.run(argv, input=SOURCE, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
