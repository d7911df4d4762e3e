"""Stops all threads of a local process by PTRACE_SEIZE and PTRACE_INTERRUPT (ptrace(2)) and reads their registers.

Use it in a thread that ends soon afterwards: the kernel then detaches all its tracees, even those that never stopped,
which nothing else can do.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from memleak_android.host.errors import TargetError

# <linux/ptrace.h>
_SEIZE, _INTERRUPT, _DETACH, _GETREGSET = 0x4206, 0x4207, 17, 0x4204
_EVENT_STOP = 128
_NT_PRSTATUS = 1  # <linux/elf.h>
_WALL = 0x40000000  # <linux/wait.h>: threads, too
_DEADLINE_S = 2.0  # a thread in vfork() or waiting for a dead disk stops no sooner
_SP = {"x86_64": 19, "aarch64": 31}  # index of the stack pointer among the 8-byte registers (<asm/ptrace.h>)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_ulong, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


@dataclass(frozen=True, slots=True)
class StoppedThread:
    tid: int
    registers: tuple[int, ...]  # general registers, in the order of the kernel's structure
    stack_pointer: int


@contextmanager
def stopped_threads(pid: int) -> Iterator[tuple[StoppedThread, ...]]:
    """Stops all threads of `pid` while the context lasts. Raises TargetError."""
    signals: dict[int, int] = {}  # by thread: the signal to deliver on resume
    try:
        while new := [tid for tid in _tids(pid) if tid not in signals]:
            signals.update((tid, 0) for tid in new if _seize(pid, tid))
            for tid in [tid for tid in new if tid in signals]:
                _wait(pid, tid, signals)
        if not signals:
            raise TargetError(f"process {pid} ended before its memory could be scanned")
        yield tuple(_read_registers(tid) for tid in signals)
    finally:
        for tid, pending in signals.items():
            _libc.ptrace(_DETACH, tid, None, pending)


def _tids(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _seize(pid: int, tid: int) -> bool:
    """False if the thread ended meanwhile."""
    if _libc.ptrace(_SEIZE, tid, None, None) == 0:
        _libc.ptrace(_INTERRUPT, tid, None, None)
        return True
    if not os.path.exists(f"/proc/{pid}/task/{tid}"):
        return False
    reason = os.strerror(ctypes.get_errno())
    raise TargetError(
        f"process {pid} could not be stopped: {reason}", "run as root, without a debugger on it"
    )


def _wait(pid: int, tid: int, signals: dict[int, int]) -> None:
    """Waits until the thread stops; forgets one that ends."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            seen, status = os.waitpid(tid, _WALL | os.WNOHANG)
        except ChildProcessError:
            seen, status = tid, 0
        if seen:
            break
        if time.monotonic() > deadline:
            raise TargetError(f"thread {tid} of process {pid} did not stop within {_DEADLINE_S:.0f} s")
        time.sleep(0)
    if not os.WIFSTOPPED(status):
        del signals[tid]
    elif status >> 16 != _EVENT_STOP:
        signals[tid] = os.WSTOPSIG(status) & ~0x80


def _read_registers(tid: int) -> StoppedThread:
    buffer = ctypes.create_string_buffer(1024)
    vector = _Iovec(ctypes.addressof(buffer), len(buffer))
    if _libc.ptrace(_GETREGSET, tid, _NT_PRSTATUS, ctypes.byref(vector)):
        raise TargetError(f"the registers of thread {tid} cannot be read: {os.strerror(ctypes.get_errno())}")
    words = struct.unpack(f"<{vector.bytes // 8}Q", buffer.raw[: vector.bytes // 8 * 8])
    return StoppedThread(tid, words, words[_SP[platform.machine()]])
