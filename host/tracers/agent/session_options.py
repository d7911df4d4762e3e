"""Options of a tracer session, and the agent's configuration lines for them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Protocol
from urllib.parse import quote

from memleak_android.host.elf.dynamic import ElfFile, FileIdentity
from memleak_android.host.errors import TracerError
from memleak_android.host.pairs.schema import PairRoute
from memleak_android.host.wire.blocks import WIRE_VERSION, Block

# Options of all collectors that the agent reads as numbers, under the same names.
_NUMBERS = (
    "follow", "stack_bytes", "sample_bytes", "every_stack", "extend_stacks", "older_ns",
    "min_size", "max_size", "max_live", "events",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProbedFile:
    """A loaded file of a process; pid 0 = of the command. path: in the process. agent_path: for the agent.

    The first file of a process is its executable.
    """

    pid: int
    path: str
    agent_path: str


def opened_here(file: ProbedFile) -> str:
    """The path by which a process's file can be read on this machine."""
    return file.agent_path


@dataclass(frozen=True, slots=True)
class PairPlan:
    """The part of a session for --pairs.

    lines: of the agent's configuration.
    names: (pair, function) by number, from wire.FIRST_PAIR_FUNCTION on.
    releases: numbers of the releasing functions.
    problems: functions that were not found or not usable, one sentence each; the plan has the rest.
    units: of pairs whose handles are counted, by name: `descriptor`.
    """

    lines: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    releases: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PatchSite:
    """A function of --pairs to be patched in a running process. elf: its file. size: in bytes, 0 = unknown."""

    name: str
    file: ProbedFile
    elf: ElfFile
    file_offset: int
    size: int


class CodePatcher(Protocol):
    """Inline hooks for functions of --pairs (inline/pairs.py)."""

    def look_at(self, sites: Sequence[PatchSite]) -> None:
        """Scans the files of several sites for jumps into them, before each is checked."""

    def check(self, site: PatchSite) -> None:
        """Raises TargetError, with the function's name, if it cannot be patched."""

    def lines(
        self, number: int, site: PatchSite, teller: tuple[ProbedFile, ElfFile, int] | None
    ) -> list[str]:
        """Of the agent's configuration. number: of the function. teller: file and vaddr of the function that returns sizes."""


class PairPlanner(Protocol):
    """Selects functions for --pairs. with_heap: malloc and its family are traced too. digest: differs between selections."""

    @property
    def with_heap(self) -> bool: ...

    @property
    def digest(self) -> int: ...

    def plan(
        self,
        files: Sequence[ProbedFile],
        opened: Callable[[ProbedFile], str] = opened_here,
        by: PairRoute = "probes",
        patcher: CodePatcher | None = None,
    ) -> PairPlan:
        """files: of the process, its executable first.
        opened: path by which a file can be read on this machine.
        patcher: for "patches".
        Raises TargetError if nothing is left to probe.
        """


@dataclass(frozen=True, slots=True)
class AllocatorChoice:
    """The functions of a heap that are traced. object, symbols_prefix: see SessionOptions. is_traced: False = --pairs only."""

    object: str | None = None
    symbols_prefix: str = ""
    is_traced: bool = True

    @property
    def malloc(self) -> str:
        """The name of the allocator's malloc."""
        return self.symbols_prefix + "malloc"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """One session. Exactly one of pid and command is set, except for the kernel's memory. Sizes in bytes, ages in nanoseconds."""

    pid: int | None = None
    command: tuple[str, ...] = ()
    follow: bool = False
    stack_bytes: int = 65528  # cap on a stack slice
    sample_bytes: int = 0  # 0 = every allocation
    every_stack: bool = False  # no deduplication of stacks
    extend_stacks: bool = False  # record the code addresses in stacks beyond their slice
    unwind: str = "cfi"  # cfi | fp | both: the content of evidence
    max_frames: int = 1024  # of a stack; more are folded
    older_ns: int = 500_000_000  # age from which evidence leaves the agent's nursery
    min_size: int = 0
    max_size: int = 2**64 - 1
    max_live: int = 4_000_000
    events: bool = False  # stream every call (--trace, --record-all)
    mmap: bool = False  # list the regions that do not grow, too
    python_objects: bool = True  # the shim: also the blocks of CPython's own allocators
    python_lines: bool = True  # the shim: also the frames in Python
    perf_events: bool = False  # BPF without the ring buffer, as on older kernels
    without_multi: bool = False  # BPF: a perf event for each probe, as before Linux 6.10
    object: str | None = None  # -O: the library with the allocator
    symbols_prefix: str = ""
    pairs: PairPlanner | None = None  # --pairs; None = the heap only
    hold_end: bool = False  # a command is stopped at its end for a scan; Tracer.resume() continues it
    every_process: bool = False  # of this machine; then there is neither pid nor command
    kernel: int = 0  # the kernel's own memory instead, by KernelGroup; then a pid is not needed
    missing_free_expected: bool = False  # of the kernel: frees without an event do not count as losses
    without_btf: bool = False  # of the kernel: as on one without BTF
    max_stacks: int = 0  # of the kernel: distinguished at a time; 0 = the agent's maximum

    @property
    def allocator(self) -> AllocatorChoice:
        is_traced = self.pairs is None or self.pairs.with_heap
        return AllocatorChoice(self.object, self.symbols_prefix, is_traced)

    def lines(self) -> list[str]:
        """The configuration lines common to all collectors (docs/wire-protocol.md, "The agent's input")."""
        return [
            f"wire {WIRE_VERSION}",
            *(["hold_end 1"] if self.hold_end else []),
            *([] if self.python_objects else ["no_python_objects 1"]),
            *([] if self.python_lines else ["no_python_lines 1"]),
            *([f"pid {self.pid}"] if self.pid is not None else []),
            *(f"arg {quote(os.fsencode(argument), safe='/')}" for argument in self.command),
            *(f"{name} {int(getattr(self, name))}" for name in _NUMBERS),
            f"mmap {self._regions}",
            f"unwind {self.unwind}",
        ]

    @property
    def _regions(self) -> int:
        """For the agent: 0 = no region ledger, 1 = kept where the tracer can, 2 = asked for."""
        if self.kernel or self.every_process or not self.allocator.is_traced:
            return 0
        return 2 if self.mmap else 1

    def bpf_lines(self) -> list[str]:
        """Those of the BPF collector; a plan's lines follow."""
        numbers = (("perf_event_path", self.perf_events), ("without_multi", self.without_multi))
        return [*self.lines(), *(f"{name} {int(value)}" for name, value in numbers)]

    def kernel_lines(self) -> list[str]:
        """Those of a session about the kernel."""
        return [
            *self.lines(),
            *([] if self.pid is not None or self.command else ["whole_machine 1"]),
            f"kernel_groups {self.kernel}",
            f"without_btf {int(self.without_btf)}",
            f"max_stacks {self.max_stacks}",
        ]

    def pair_lines(self, plan: PairPlan | None) -> list[str]:
        """Those of a shim session's pairs. Raises TracerError with sampling, which would skip handles."""
        if self.pairs is None or plan is None:
            return []
        if self.sample_bytes:
            raise TracerError(
                "--sample-bytes and --pairs exclude each other: every handle counts", "drop --sample-bytes"
            )
        return [*plan.lines, f"no_heap {int(not self.pairs.with_heap)}"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One probed function. Offsets are file offsets in `path`, as uprobes take them.

    entry_offset: of the entry probe, perhaps after the function's first instruction (host/tracers/probes/placement.py).
    return_offset: of the return probe, None = not needed.
    text_low, text_high: of the executable segment; a call that returns into it comes from the allocator itself.
    identity: of the file whose offsets these are; None: of a copy, as for a device.
    entry_cost: "emulated" | "simulated" | "single-stepped"; return_cost likewise, "" without a return probe.
    exits: offsets of the instructions that leave the function, probed in place of its return; None: the return is probed.
    """

    function: str  # lower-case name of enum ml_function
    path: str  # path for the agent (/proc/PID/root/… for another mount namespace)
    function_offset: int
    entry_offset: int
    return_offset: int | None
    text_low: int
    text_high: int
    entry_cost: str
    return_cost: str = ""
    identity: FileIdentity | None = None
    exits: tuple[int, ...] | None = None


class Tracer(Protocol):
    """A running session. blocks() ends after the END block or when the agent has ended."""

    name: str
    has_begun: bool  # False while the agent waits for the target to start

    def blocks(self) -> Iterator[Block]: ...

    def request_snapshot(self) -> None: ...

    def detach(self) -> None:
        """With hold_end: releases the command, which another tracer will stop now."""

    def resume(self) -> None:
        """With hold_end: lets the command end."""

    def stop(self) -> None:
        """Asks for the final snapshot and the END block; returns at once."""

    def close(self) -> None:
        """Ends the agent in any state and waits for its end."""

    def abandon(self) -> None:
        """Ends the agent soon. If it must be killed, the kernel takes some time to remove its probes."""


def file_lines(path: str, identity: FileIdentity | None) -> list[str]:
    """`file DEVICE INODE BYTES MODIFIED_NS PATH`: the agent places probes into no other file. [] without an identity."""
    if identity is None:
        return []
    numbers = " ".join(f"{number:x}" for number in astuple(identity))
    return [f"file {numbers} {quote(os.fsencode(path), safe='/')}"]


def probe_lines(probe: Probe, function_number: int) -> list[str]:
    """`probe FUNCTION FUNCTION_OFFSET ENTRY RETURN|- TEXT_LOW TEXT_HIGH PATH`, numbers in hex, path quoted; then its exits."""
    back = "-" if probe.return_offset is None else f"{probe.return_offset:x}"
    line = (
        f"probe {function_number:x} {probe.function_offset:x} {probe.entry_offset:x} {back}"
        f" {probe.text_low:x} {probe.text_high:x} {quote(os.fsencode(probe.path), safe='/')}"
    )
    if probe.exits is None:
        return [line]
    return [line, " ".join(["exits", str(len(probe.exits)), *(f"{offset:x}" for offset in probe.exits)])]
