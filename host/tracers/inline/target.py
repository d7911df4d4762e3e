"""The target process of inline hooks: its mappings, the shim's addresses in it, the agent's lines."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from memleak_android.host.console import one_line
from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.local.process import LoadedObject, LocalProcess, read_text
from memleak_android.host.machine.parse import decimal
from memleak_android.host.tracers.agent.session import reported_error
from memleak_android.host.tracers.inline.patch_plan import TRAMPOLINE_BYTES, PatchPlan
from memleak_android.host.tracers.inline.relocation import Surroundings
from memleak_android.host.wire.blocks import STOP, Reason, Rows, StopMoment
from memleak_android.unwind.elf_headers import EM_AARCH64, PF_X, PT_LOAD
from memleak_android.unwind.maps import Mapping

_HOOK = struct.Struct("<24sQQ")  # struct memleak_hook, device/preload/segment/attach_abi.h
_ROOM_PAGE, _ROOM_BIAS = 4096, 1 << 20  # device/preload/hooks/inline_hook.h
ROOM_SLOTS = 24576 // TRAMPOLINE_BYTES
_BTI, _GCS = 1, 4  # GNU_PROPERTY_AARCH64_FEATURE_1_*
_INJECT_S = 30
_U16_MAX, _U32_MAX, _NS_MAX = 2**16 - 1, 2**32 - 1, 2**62 - 1
_STOPS_MAX = 64  # device/agent/protocol/stop_times.h


@dataclass(frozen=True, slots=True)
class Reservation:
    """distance: of the room (device/preload/hooks/inline_hook.h), or -errno. stops: rows of STOP."""

    distance: int
    stops: Rows


def reserve_command(agent: str, pid: int, shim: str, near: int) -> list[str]:
    return [agent, "inject", str(pid), shim, "memleak_reserve", f"{near:016x}"]


def reserved(pid: int, code: int, out: str, err: str) -> Reservation:
    """Parses the command's answer. Raises TargetError with its reason."""
    if code or not out:
        raise reported_error(
            Reason.TARGET_ERROR, one_line(err.strip()) or f"process {pid} could not be entered"
        )
    word = (out.split() or [""])[0]
    distance = decimal(word.removeprefix("-"))
    if distance is None:
        raise TargetError(f"process {pid} was entered, but its answer is not a number: {one_line(out)}")
    stops = [row for line in out.splitlines()[1 : 1 + _STOPS_MAX] if (row := _stop(line, pid))]
    return Reservation(-distance if word.startswith("-") else distance, np.array(stops, STOP))


def _stop(line: str, pid: int) -> tuple[int, ...] | None:
    """A row of STOP from `stop STOPPED TIMESTAMP_NS DURATION_NS THREADS`; None for other lines."""
    word, *texts = line.split() or [""]
    numbers = [number for text in texts if (number := decimal(text)) is not None]
    if word != "stop" or len(numbers) != 4 or len(texts) != 4:
        return None
    stopped, timestamp_ns, duration_ns, threads = map(min, numbers, (_U16_MAX, _NS_MAX, _NS_MAX, _U32_MAX))
    return timestamp_ns, duration_ns, pid, threads, StopMoment.PREPARE, stopped, 0


class HookedProcess(Protocol):
    """The process that a plan needs. shim: its path in the process, and the path of our copy."""

    @property
    def pid(self) -> int: ...

    @property
    def shim(self) -> LoadedObject: ...

    def mappings(self) -> Sequence[Mapping]: ...

    def status(self) -> str:
        """The text of /proc/PID/status."""

    def reserve(self, near: int) -> Reservation:
        """Loads the shim and calls its memleak_reserve()."""


@dataclass(frozen=True, slots=True)
class LocalHooked:
    """A local process. agent, shim_path: our files."""

    process: LocalProcess
    agent: Path
    shim_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def shim(self) -> LoadedObject:
        path = os.path.realpath(self.shim_path)
        return LoadedObject(path, path)

    def mappings(self) -> Sequence[Mapping]:
        return self.process.mappings()

    def status(self) -> str:
        try:
            return read_text(f"/proc/{self.pid}/status")
        except OSError:
            return ""

    def reserve(self, near: int) -> Reservation:
        command = reserve_command(str(self.agent), self.pid, self.shim.path, near)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INJECT_S, check=False)
        except subprocess.TimeoutExpired:
            raise TargetError(
                f"process {self.pid} could not be entered within {_INJECT_S} s", "try again"
            ) from None
        return reserved(self.pid, done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """An ELF file as the process has it mapped."""

    elf: ElfFile
    mappings: Sequence[Mapping]

    def address(self, vaddr: int) -> int:
        """The address of a vaddr, from the mapping of an executable segment. Raises TargetError."""
        for segment in self.elf.segments:
            if segment.type != PT_LOAD or not segment.flags & PF_X:
                continue
            for mapping in self.mappings:
                into = segment.file_offset - mapping.file_offset
                if 0 <= into < mapping.end - mapping.start and mapping.is_executable:
                    return mapping.start + into - segment.vaddr + vaddr
        raise TargetError(f"the code of {self.elf.path} is not in the process's memory", "use --tracer bpf")

    def surroundings(self, status: str) -> Surroundings:
        """Landing pads and shadow stacks: CET from the kernel (arch/x86/kernel/cpu/proc.c, 6.6), BTI and GCS from the file."""
        features = self.elf.gnu_features if self.elf.machine == EM_AARCH64 else 0
        has_shadow_stack = "shstk" in status.partition("x86_Thread_features:")[2].partition("\n")[0]
        return Surroundings(bool(features & _BTI), has_shadow_stack or bool(features & _GCS))


def mapped_file(process: HookedProcess, path: str, elf: ElfFile, dynamic: int = 0) -> MappedFile:
    """The mappings of a file. Raises TargetError.

    path: in the process.
    dynamic: LoadedObject.dynamic, which selects among several copies.
    """
    copies: list[list[Mapping]] = []
    mappings = process.mappings()
    if not mappings:
        raise TargetError(f"process {process.pid} ended while it was attached to")
    for mapping in mappings:
        if mapping.path.removesuffix(" (deleted)") != path:
            continue
        # The mappings of one copy have ascending file offsets.
        if not copies or mapping.file_offset < copies[-1][-1].file_offset:
            copies.append([])
        copies[-1].append(mapping)
    if not copies:
        raise TargetError(f"process {process.pid} has not mapped {path}", "try again")
    meant = [copy for copy in copies if copy[0].start <= dynamic < copy[-1].end]
    return MappedFile(elf, (meant or [[mapping for copy in copies for mapping in copy]])[0])


@dataclass(frozen=True, slots=True)
class Shim:
    """The shim's file as mapped in the process."""

    file: MappedFile

    @classmethod
    def of(cls, process: HookedProcess) -> Shim:
        return cls(mapped_file(process, process.shim.path, ElfFile(process.shim.open_path)))

    def function(self, name: str) -> int:
        found = self.file.elf.dynamic_functions({name})
        if not found:
            raise self._lacks(name)
        return self.file.address(found[0].vaddr)

    def landing(self, name: str) -> int:
        """The shim's entry of a heap function (device/preload/entries/inline_entries.c)."""
        return self.function(f"memleak_inline_{name}")

    def data(self, name: str) -> tuple[int, int]:
        """Address and size of a variable."""
        found = self.file.elf.dynamic_data(name)
        if found is None:
            raise self._lacks(name)
        return self.file.address(found[0]), found[1]

    def hooks(self) -> dict[str, int]:
        """By name, the address of the word that holds each hook's original."""
        found = self.file.elf.dynamic_data("memleak_hooks")
        if found is None:
            raise self._lacks("memleak_hooks")
        vaddr, size = found
        raw = self.file.elf.slice(self.file.elf.file_offset(vaddr) or 0, size - size % _HOOK.size)
        names = [name.rstrip(b"\0").decode() for name, _, _ in _HOOK.iter_unpack(raw)]
        return {name: self.file.address(vaddr) + i * _HOOK.size + 32 for i, name in enumerate(names)}

    def room(self, near: int, reservation: Reservation) -> int:
        """Room for ROOM_SLOTS trampolines: the reservation near that address, else the shim's own text."""
        if reservation.distance <= 0:
            return self.function("memleak_room")
        return (near & ~(_ROOM_PAGE - 1)) + (reservation.distance - _ROOM_BIAS) * _ROOM_PAGE

    def _lacks(self, name: str) -> TracerError:
        return TracerError(f"{self.file.elf.path} does not define {name}", "build it with `make device`")


def slot_line(address: int, value: int) -> str:
    """A word that the agent writes into the process before it attaches (docs/wire-protocol.md, section 8)."""
    return f"slot {address:x} {value:x}"


def patch_line(plan: PatchPlan) -> str:
    """`patch ADDRESS KEPT EXPECTED PATCH TRAMPOLINE CODE MOVES RETURNS` (docs/wire-protocol.md, section 8)."""
    return (
        f"patch {plan.address:x} {plan.kept.hex() or '-'} {plan.expected.hex()} {plan.patch.hex()} {plan.trampoline_address:x}"
        f" {plan.trampoline.hex()} {_moves(plan.moves)} {_moves(plan.returns)}"
    )


def _moves(moves: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{pc:x}:{to:x}" for pc, to in moves) or "-"
