"""The programs' text, one pair for each probed function, and their way into the kernel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from memleak_android.host.errors import TracerError
from memleak_android.host.tracers.bcc.config import Configuration, ProbedFunction
from memleak_android.host.wire.blocks import Function

STACK_BYTES = 1 << 14  # of a slice, at most; a power of two
_KEYS_MAX, _THREADS_MAX, _RING_PAGES = 1 << 20, 1024, 4096

# bpf_attach_uprobe() of src/cc/libbpf.h: program, enum bpf_probe_attach_type, name, file, offset in it, pid, offset of a semaphore.
_ATTACH_UPROBE = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32]  # fmt: skip
_ENTRY, _RETURN, _NO_SEMAPHORE = 0, 1, 0

# Requested bytes, and the pointer argument: the old block, or where the result is stored.
_SIGNATURES = {
    Function.MALLOC: ("PT_REGS_PARM1(ctx)", "0"),
    Function.CALLOC: ("PT_REGS_PARM1(ctx) * PT_REGS_PARM2(ctx)", "0"),
    Function.REALLOC: ("PT_REGS_PARM2(ctx)", "PT_REGS_PARM1(ctx)"),
    Function.REALLOCARRAY: ("PT_REGS_PARM2(ctx) * PT_REGS_PARM3(ctx)", "PT_REGS_PARM1(ctx)"),
    Function.POSIX_MEMALIGN: ("PT_REGS_PARM3(ctx)", "PT_REGS_PARM1(ctx)"),
    Function.MEMALIGN: ("PT_REGS_PARM2(ctx)", "0"),
    Function.ALIGNED_ALLOC: ("PT_REGS_PARM2(ctx)", "0"),
    Function.VALLOC: ("PT_REGS_PARM1(ctx)", "0"),
    Function.PVALLOC: ("PT_REGS_PARM1(ctx)", "0"),
}
_RELEASES = (Function.FREE, Function.CFREE, Function.FREE_SIZED, Function.FREE_ALIGNED_SIZED)


def source(told: Configuration) -> str:
    """accounting.c and the programs behind it."""
    text = (files("memleak_android.host.tracers.bcc") / "accounting.c").read_text()
    return "\n".join([text, *(_program(number, probe) for number, probe in enumerate(told.probes))])


def flags(told: Configuration) -> list[str]:
    """What accounting.c leaves open."""
    wanted = {
        "STACK_BYTES": STACK_BYTES,
        "MAX_LIVE": told.max_live,
        "MAX_KEYS": _KEYS_MAX,
        "MAX_THREADS": _THREADS_MAX,
        "RING_PAGES": _RING_PAGES,
        "MIN_SIZE": f"{told.min_size}ull",
        "MAX_SIZE": f"{told.max_size}ull",
        "EVERY_STACK": int(told.every_stack),
    }
    return [f"-D{name}={value}" for name, value in wanted.items()]


def load(bcc: Any, told: Configuration) -> Any:
    """Compiles and loads. Raises TracerError; what compiler and verifier say goes to standard error."""
    try:
        bpf = bcc.BPF(text=source(told), cflags=flags(told))
        for name in _names(told.probes):
            bpf.load_func(name, bpf.KPROBE)
    except Exception as error:  # noqa: BLE001 - bcc raises no other
        raise TracerError(
            f"bcc cannot compile or load the programs: {error}", "kernel headers of another architecture?"
        ) from None
    return bpf


class Probes:
    """Placed probes, of one process. bcc: the module. bpf: its loaded programs."""

    def __init__(self, bcc: Any, bpf: Any) -> None:
        self._lib, self._bpf = bcc.lib, bpf
        self._descriptors: list[int] = []
        # Python's side of bcc 0.26 leaves out the last one, which then is what stood in its register: the kernel refuses
        # most of that, or would count a semaphore up in the target's memory.
        self._lib.bpf_attach_uprobe.argtypes = _ATTACH_UPROBE

    def place(self, probes: Sequence[ProbedFunction], pid: int) -> None:
        """Releases first: a block whose free is not seen must not be counted. Raises TracerError."""
        for number, probe in sorted(enumerate(probes), key=lambda one: one[1].return_offset is not None):
            self._place(f"entry_{number}", _ENTRY, probe.path, probe.entry_offset, pid)
            if probe.return_offset is not None:
                self._place(f"return_{number}", _RETURN, probe.path, probe.return_offset, pid)

    def take_away(self) -> None:
        """Releases last."""
        while self._descriptors:
            self._lib.bpf_close_perf_event_fd(self._descriptors.pop())

    def _place(self, program: str, kind: int, path: str, offset: int, pid: int) -> None:
        loaded = self._bpf.load_func(program, self._bpf.KPROBE)
        place = os.fsencode(path)
        name = f"memleak_{os.getpid()}_{program}".encode()
        descriptor = int(
            self._lib.bpf_attach_uprobe(loaded.fd, kind, name, place, offset, pid, _NO_SEMAPHORE)
        )
        if descriptor < 0:
            raise TracerError(f"bcc cannot place a probe at {path}+{offset:#x}", "see what `doctor` says")
        self._descriptors.append(descriptor)


def _names(probes: Sequence[ProbedFunction]) -> list[str]:
    """Of the programs, as _program() calls them."""
    returns = [f"return_{number}" for number, probe in enumerate(probes) if probe.return_offset is not None]
    return [*(f"entry_{number}" for number in range(len(probes))), *returns]


def _program(number: int, probe: ProbedFunction) -> str:
    own = f"returns_between(ctx, {_distance(probe.text_low, probe)}, {_distance(probe.text_high, probe)})"
    function = Function(probe.number)
    if function in _RELEASES:
        body = f"release(PT_REGS_PARM1(ctx), {own})"
        return f"int entry_{number}(struct pt_regs *ctx) {{ return {body}; }}"
    size, pointer = _SIGNATURES[function]
    frees = int(function in (Function.REALLOC, Function.REALLOCARRAY))
    is_out = int(function == Function.POSIX_MEMALIGN)
    body = f"enter(ctx, {probe.number}, {size}, {pointer}, {frees}, {own})"
    return (
        f"int entry_{number}(struct pt_regs *ctx) {{ return {body}; }}\n"
        f"int return_{number}(struct pt_regs *ctx) {{ return leave(ctx, {is_out}); }}"
    )


def _distance(offset: int, probe: ProbedFunction) -> str:
    return f"{(offset - probe.entry_offset) % 2**64:#x}ull"
