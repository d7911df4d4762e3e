"""The text of the programs, one pair for each probed function; loading and attaching them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from memleak_android.host.errors import TracerError
from memleak_android.host.pairs.schema import heap_family
from memleak_android.host.tracers.bcc.config import Configuration, ProbedFunction
from memleak_android.host.wire.blocks import LOST_MAX

STACK_BYTES = 1 << 14  # largest stack slice; a power of two
_KEYS_MAX, _THREADS_MAX, _RING_PAGES = 1 << 20, 1024, 4096

# bpf_attach_uprobe() of src/cc/libbpf.h: program, enum bpf_probe_attach_type, name, file, offset in it, pid, offset of a semaphore.
_ATTACH_UPROBE = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32]  # fmt: skip
_ENTRY, _RETURN, _NO_SEMAPHORE = 0, 1, 0


def source(configuration: Configuration) -> str:
    """accounting.c and the programs behind it."""
    text = (files("memleak_android.host.tracers.bcc") / "accounting.c").read_text()
    return "\n".join([text, *(_program(number, probe) for number, probe in enumerate(configuration.probes))])


def flags(configuration: Configuration) -> list[str]:
    """The constants that accounting.c needs."""
    wanted = {
        "STACK_BYTES": STACK_BYTES,
        "LOST_MAX": LOST_MAX,
        "MAX_LIVE": configuration.max_live,
        "MAX_KEYS": _KEYS_MAX,
        "MAX_THREADS": _THREADS_MAX,
        "RING_PAGES": _RING_PAGES,
        "MIN_SIZE": f"{configuration.min_size}ull",
        "MAX_SIZE": f"{configuration.max_size}ull",
        "EVERY_STACK": int(configuration.every_stack),
    }
    return [f"-D{name}={value}" for name, value in wanted.items()]


def load(bcc: Any, configuration: Configuration) -> Any:
    """Compiles and loads. Raises TracerError; messages of compiler and verifier go to standard error."""
    try:
        bpf = bcc.BPF(text=source(configuration), cflags=flags(configuration))
        for name in _names(configuration.probes):
            bpf.load_func(name, bpf.KPROBE)
    except Exception as error:  # noqa: BLE001 - bcc raises no other
        raise TracerError(
            f"bcc cannot compile or load the programs: {error}", "kernel headers of another architecture?"
        ) from None
    return bpf


class Probes:
    """The attached probes of one process.

    bcc: the module.
    bpf: its loaded programs.
    """

    def __init__(self, bcc: Any, bpf: Any) -> None:
        self._lib, self._bpf = bcc.lib, bpf
        self._descriptors: list[int] = []
        # Python's side of bcc 0.26 omits the last argument, whose register then holds garbage. The kernel refuses most
        # values; others would make it increment a semaphore in the target's memory.
        self._lib.bpf_attach_uprobe.argtypes = _ATTACH_UPROBE

    def attach(self, probes: Sequence[ProbedFunction], pid: int) -> None:
        """Attaches releases first: a block whose free would be missed must not be counted. Raises TracerError."""
        for number, probe in sorted(enumerate(probes), key=lambda one: one[1].return_offset is not None):
            self._attach(f"entry_{number}", _ENTRY, probe.path, probe.entry_offset, pid)
            if probe.return_offset is not None:
                self._attach(f"return_{number}", _RETURN, probe.path, probe.return_offset, pid)

    def detach(self) -> None:
        """Detaches releases last."""
        while self._descriptors:
            self._lib.bpf_close_perf_event_fd(self._descriptors.pop())

    def _attach(self, program: str, kind: int, path: str, offset: int, pid: int) -> None:
        loaded = self._bpf.load_func(program, self._bpf.KPROBE)
        name = f"memleak_{os.getpid()}_{program}".encode()
        descriptor = int(
            self._lib.bpf_attach_uprobe(loaded.fd, kind, name, os.fsencode(path), offset, pid, _NO_SEMAPHORE)
        )
        if descriptor < 0:
            raise TracerError(
                f"bcc could not attach a probe at {path}+{offset:#x}", "see `memleak-android doctor`"
            )
        self._descriptors.append(descriptor)


def _names(probes: Sequence[ProbedFunction]) -> list[str]:
    """Of the programs, as _program() calls them."""
    returns = [f"return_{number}" for number, probe in enumerate(probes) if probe.return_offset is not None]
    return [*(f"entry_{number}" for number in range(len(probes))), *returns]


def _program(number: int, probe: ProbedFunction) -> str:
    """Entry and return program. The rule of host/pairs/malloc.toml says which arguments are the size and the old block."""
    rule = heap_family().rules[probe.number - 1]
    own = f"returns_between(ctx, {_distance(probe.text_low, probe)}, {_distance(probe.text_high, probe)})"
    if rule.is_release:
        body = f"release(PT_REGS_PARM1(ctx), {own})"
        return f"int entry_{number}(struct pt_regs *ctx) {{ return {body}; }}"
    size = " * ".join(f"PT_REGS_PARM{argument}(ctx)" for argument in rule.size_arguments)
    pointer = f"PT_REGS_PARM{argument}(ctx)" if (argument := rule.old or rule.handle.argument) else "0"
    body = f"enter(ctx, {probe.number}, {size}, {pointer}, {int(rule.old > 0)}, {own})"
    return (
        f"int entry_{number}(struct pt_regs *ctx) {{ return {body}; }}\n"
        f"int return_{number}(struct pt_regs *ctx) {{ return leave(ctx, {int(rule.handle.is_indirect)}); }}"
    )


def _distance(offset: int, probe: ProbedFunction) -> str:
    return f"{(offset - probe.entry_offset) % 2**64:#x}ull"
