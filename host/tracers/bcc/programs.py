"""The text of the programs, one pair for each probed function; loading and attaching them."""

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from memleak_android.host.elf.dynamic import FileIdentity
from memleak_android.host.errors import TracerError
from memleak_android.host.pairs.schema import heap_family
from memleak_android.unwind.file_reading import open_regular

# bpf_attach_uprobe() of src/cc/libbpf.h: program, enum bpf_probe_attach_type, name, file, offset in it, pid, offset of a semaphore.
# Python's side of bcc 0.26 omits the last one, whose register then holds garbage. The kernel refuses most values; others
# would make it increment a semaphore in the target's memory.
_ATTACH_UPROBE = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32]  # fmt: skip
_NO_SEMAPHORE = 0


@contextmanager
def _reported() -> Iterator[None]:
    """bcc raises a bare Exception where the compiler or the verifier refuses; what derives from it is a bug."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise TracerError(
            f"bcc cannot compile or load the programs: {error}", "kernel headers of another architecture?"
        ) from None


class Programs:
    """Compiled and loaded programs for the probes of one process. bpf: bcc's object with their maps.

    bcc: the module. constants: those that accounting.c needs. probes: fields of Probe, and `number`: enum ml_function.
    Raises TracerError; messages of compiler and verifier go to standard error.
    """

    def __init__(self, bcc: Any, constants: Mapping[str, int], probes: Sequence[dict[str, Any]]) -> None:
        text = (files("memleak_android.host.tracers.bcc") / "accounting.c").read_text()
        text = "\n".join([text, *(_program(number, probe) for number, probe in enumerate(probes))])
        self._lib = bcc.lib
        self._lib.bpf_attach_uprobe.argtypes = _ATTACH_UPROBE
        self._loaded: list[tuple[int, int, str, int]] = []  # program, kind of probe, path, offset
        self._attached: list[int] = []
        self._files: dict[str, int] = {}  # descriptors
        with _reported():
            flags = [f"-D{name}={value}ull" for name, value in constants.items()]
            self.bpf = bcc.BPF(text=text, cflags=flags)
        # Releases first: a block whose free would be missed must not be counted.
        for number in sorted(range(len(probes)), key=lambda one: probes[one]["return_offset"] is not None):
            for kind, name in enumerate(("entry", "return")):
                if (offset := probes[number][f"{name}_offset"]) is not None:
                    with _reported():
                        program = self.bpf.load_func(f"{name}_{number}", self.bpf.KPROBE).fd
                    self._loaded.append((program, kind, probes[number]["path"], offset))
        for probe in probes:
            self._open(probe["path"], probe["identity"])

    def _open(self, path: str, identity: dict[str, int]) -> None:
        """Raises TracerError where another file than the one that was read is there by now."""
        if path not in self._files:
            self._files[path] = open_regular(path)
        if asdict(FileIdentity.of(self._files[path])) != identity:
            raise TracerError(f"{path} was replaced after it was read", "try again")

    def attach(self, pid: int) -> None:
        """Raises TracerError."""
        for number, (program, kind, path, offset) in enumerate(self._loaded):
            name, file = f"memleak_{os.getpid()}_{number}".encode(), b"/proc/self/fd/%d" % self._files[path]
            descriptor = self._lib.bpf_attach_uprobe(program, kind, name, file, offset, pid, _NO_SEMAPHORE)
            if descriptor < 0:
                raise TracerError(
                    f"bcc could not attach a probe at {path}+{offset:#x}", "see `memleak-android doctor`"
                )
            self._attached.append(descriptor)

    def detach(self) -> None:
        """Detaches releases last."""
        while self._attached:
            self._lib.bpf_close_perf_event_fd(self._attached.pop())


def _program(number: int, probe: dict[str, Any]) -> str:
    """Entry and return program. The rule of host/pairs/malloc.toml says which arguments are the size and the old block."""
    function = probe["number"]
    rule = heap_family().rules[function - 1]
    low, high = ((bound - probe["entry_offset"]) % 2**64 for bound in (probe["text_low"], probe["text_high"]))
    own = f"returns_between(ctx, {low:#x}ull, {high:#x}ull)"
    if rule.is_release:
        return f"int entry_{number}(struct pt_regs *ctx) {{ return release(PT_REGS_PARM1(ctx), {own}); }}"
    size = " * ".join(f"PT_REGS_PARM{argument}(ctx)" for argument in rule.size_arguments)
    pointer = f"PT_REGS_PARM{argument}(ctx)" if (argument := rule.old or rule.handle.argument) else "0"
    body = f"enter(ctx, {function}, {size}, {pointer}, {int(rule.old > 0)}, {own})"
    return (
        f"int entry_{number}(struct pt_regs *ctx) {{ return {body}; }}\n"
        f"int return_{number}(struct pt_regs *ctx) {{ return leave(ctx, {int(rule.handle.is_indirect)}); }}"
    )
