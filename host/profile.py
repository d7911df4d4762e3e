"""Profile and CallSite: the one thing reports receive. Plain data, no behaviour beyond sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """`leaks` only where a limit or the verdict rules say so; `incomplete` where something is missing."""

    OK = "ok"
    LEAKS = "leaks"
    INCOMPLETE = "incomplete"


class SymbolClass(StrEnum):
    """What a module could be named with."""

    LINES = "lines"
    NAMES = "names"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a stack, innermost first. An inlined function is a frame of its own."""

    address: int  # in the process, as unwound (a return address for callers)
    module: str  # path as mapped; "" = no mapping
    build_id: str  # hex; "" = none
    vaddr: int  # in the ELF file
    function: str  # demangled; "" = no name known
    offset: int  # from the function's start; 0 for inlined frames
    file: str | None
    line: int | None
    inlined: bool
    method: str  # how the unwinder came here: registers eh_frame debug_frame … (report.json)


@dataclass(frozen=True, slots=True)
class Block:
    """One outstanding allocation (`--show-allocs`)."""

    address: int
    size: int
    age_ns: int
    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """Everything outstanding that one call stack allocated. None = the route cannot know it."""

    id: str  # stable across runs: hash of modules and functions, innermost first
    inuse_space: int
    inuse_objects: int
    alloc_space: int | None
    alloc_objects: int | None
    oldest_ns: int  # age of the oldest block at the snapshot
    kind: str  # user | runtime | kernel | mmap | pair:NAME
    end: str  # TraceEnd name
    frames: tuple[Frame, ...]
    approximate: bool = False  # some blocks are attributed by an ambiguous stack key
    stderr_space: int | None = None
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    module: str
    build_id: str
    symbols: SymbolClass


@dataclass(frozen=True, slots=True)
class Target:
    """What was measured. `command` is the shell-quoted command line, "" when only a pid is known."""

    arch: str
    pid: int
    command: str
    tracer: str
    unwind: str
    sample_bytes: int
    package: str | None = None
    serial: str | None = None
    exit_status: int | None = None  # wait status, when the target ended


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the whole live table; unattributed blocks are in inuse_* too."""

    inuse_space: int
    inuse_objects: int
    alloc_space: int | None
    alloc_objects: int | None
    unattributed_space: int
    unattributed_objects: int
    lost: dict[str, int]  # by cause (enum ml_lost of device/wire.h, lower case), only what is not 0
    untracked_frees: int
    heap_bytes_of_target: int | None = None
    tracer_cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unwinding:
    """How well the stacks of outstanding blocks could be unwound."""

    stacks: int
    complete: int
    partial: int
    ends: dict[str, int]  # by TraceEnd name


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of a session at one instant. Sites are sorted by inuse_space, largest first."""

    target: Target
    duration_ns: int
    verdict: Verdict
    totals: Totals
    unwinding: Unwinding
    sites: tuple[CallSite, ...]
    modules: tuple[ModuleSummary, ...]
    wall_clock_s: float  # when the snapshot was taken, seconds since the epoch
    notes: tuple[str, ...] = field(default=())  # what the reader must know: older blocks invisible, …
