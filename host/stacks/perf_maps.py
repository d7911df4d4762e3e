"""Names of generated code, from the perf map that a compiler writes: /tmp/perf-PID.map.

Linux tools/perf/Documentation/jit-interface.txt: START SIZE NAME in each line, numbers hexadecimal. Written by node
(--perf-basic-prof), Python (-X perf), .NET (DOTNET_PerfMapEnabled), and for Java by perf-map-agent.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.profile.runtime_sites import JIT_FRAMES
from memleak_android.host.stacks.modules import ScriptModule
from memleak_android.host.symbols.symbolizer import NAMELESS, ResolvedFrame
from memleak_android.unwind.file_reading import contents, open_regular

_BYTES_MAX = 64 << 20
_FUNCTIONS_MAX = 1 << 20
_NAME_BYTES_MAX = 1 << 12
_DIGITS_MAX = 17  # more than an address has
# V8 (src/logging/log.cc): what it is, then how it was compiled, the name, and where the function begins.
_OF_V8 = re.compile(
    r"(?:JS|LazyCompile|Function|Script|Eval):[*~^+]?(?P<function>\S*) (?P<file>\S+?)(?::(?P<line>\d{1,9}):\d+)?"
)
_OF_PYTHON = re.compile(r"py::(?P<function>[^:]+):(?P<file>.+)")  # CPython Python/perf_trampoline.c
_ANONYMOUS = "(anonymous)"


class Named(NamedTuple):
    """line: where the function begins; 0 = unknown."""

    function: str
    file: str = ""
    line: int = 0


def parse_name(text: str) -> Named:
    found = _OF_V8.fullmatch(text) or _OF_PYTHON.fullmatch(text)
    if found is None:
        return Named(text)
    line = found.groupdict().get("line")
    return Named(found["function"] or _ANONYMOUS, found["file"].removeprefix("file://"), int(line or 0))


class PerfMap:
    """Of one process. Code is moved and written over: the last line for an address holds."""

    def __init__(self, text: bytes) -> None:
        found: dict[int, tuple[int, bytes]] = {}
        for line in text.rsplit(b"\n", _FUNCTIONS_MAX)[-_FUNCTIONS_MAX:]:
            parts = line.split(b" ", 2)
            try:
                start, size = int(parts[0][:_DIGITS_MAX], 16), int(parts[1][:_DIGITS_MAX], 16)
            except (ValueError, IndexError):
                continue
            found[start] = size, parts[-1][:_NAME_BYTES_MAX]
        self._starts = sorted(found)
        self._entries = [found[start] for start in self._starts]

    def find(self, address: int) -> str | None:
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._starts[at] + self._entries[at][0]:
            return None
        return self._entries[at][1].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class JitModule(ScriptModule):
    """functions: by vaddr, those that stacks have used."""

    functions: list[Named] = field(default_factory=list)

    def resolve(self, vaddrs: NDArray[np.uint64]) -> list[tuple[ResolvedFrame, ...]]:
        return [self._resolve(vaddr) for vaddr in vaddrs.tolist()]

    def _resolve(self, vaddr: int) -> tuple[ResolvedFrame, ...]:
        if vaddr >= len(self.functions):
            return NAMELESS
        function, file, line = self.functions[vaddr]
        return (ResolvedFrame(function, 0, file or None, line or None, False),)


def jit_module(functions: Iterable[Named] = ()) -> JitModule:
    return JitModule(JIT_FRAMES, "", memoryview(b""), None, functions=list(functions))


def recorded_functions(rows: object) -> list[Named]:
    """Of a recording's module. Malformed rows end the list: the vaddr of each is its place in it."""
    found = list[Named]()
    for row in rows if isinstance(rows, list) else ():
        if not (isinstance(row, list) and list(map(type, row)) == [str, str, int]):
            break
        found.append(Named(*row))
    return found


class PerfMaps:
    """The maps of a session's processes; each is read again when it has changed, once in a batch of addresses.

    read: text and version of a process's.
    """

    def __init__(self, read: "Callable[[int, object], tuple[bytes, object] | None] | None" = None) -> None:
        self.module = jit_module()
        self._read = read or read_local
        self._maps: dict[int, tuple[object, PerfMap]] = {}
        self._read_in_batch: set[int] = set()
        self._numbers: dict[str, int] = {}

    def begin_batch(self) -> None:
        self._read_in_batch.clear()

    def vaddr(self, pid: int, address: int) -> int | None:
        """The function's number in `module`."""
        name = self._map_of(pid).find(address)
        if name is None:
            return None
        if name not in self._numbers:
            if len(self.module.functions) >= _FUNCTIONS_MAX:
                return None
            self._numbers[name] = len(self.module.functions)
            self.module.functions.append(parse_name(name))
        return self._numbers[name]

    def _map_of(self, pid: int) -> PerfMap:
        version, known = self._maps.get(pid, (None, PerfMap(b"")))
        if pid in self._read_in_batch:
            return known
        self._read_in_batch.add(pid)
        found = self._read(pid, version)
        if found is None:
            return known
        text, version = found
        self._maps[pid] = version, PerfMap(text)
        return self._maps[pid][1]


def read_local(pid: int, known: object) -> tuple[bytes, object] | None:
    """None: there is none, or none that is newer. Only the process's own user, or ours, may have written it."""
    try:
        owners = {os.geteuid(), os.stat(f"/proc/{pid}").st_uid}
        path = f"/proc/{pid}/root/tmp/perf-{_pid_inside(pid)}.map"
    except OSError:  # it has ended
        owners, path = {os.geteuid()}, f"/tmp/perf-{pid}.map"
    try:
        descriptor = open_regular(path, follow=False)
    except (OSError, ValueError):
        return None
    try:
        about = os.fstat(descriptor)
        version = about.st_ino, about.st_size
        if about.st_uid not in owners or version == known or about.st_size > _BYTES_MAX:
            return None
        return bytes(contents(descriptor, path, _BYTES_MAX)), version
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _pid_inside(pid: int) -> str:
    """Its number in its own namespace (proc_pid_status(5), NSpid)."""
    with open(f"/proc/{pid}/status") as status:
        lines = [line for line in status if line.startswith("NSpid:")]
    return lines[0].split()[-1] if lines else str(pid)
