"""Profile and CallSite: what reports receive. Plain data, no behaviour beyond sums.

report.json has these fields in this order, defaults left out; Meta and docstrings are its schema (host/reports/json/).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.answer import PLACES, Answer, MemoryLimit, Place
from memleak_android.host.profile.coverage import Coverage
from memleak_android.host.profile.field_types import (
    ALWAYS,
    BYTE,
    Address,
    Count,
    End,
    Kind,
    RawText,
    SiteId,
    Unit,
    common_unit,
)
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.gate_result import Gate
from memleak_android.host.profile.growth import Growth, GrowthSpan, UnownedGrowth


class Measurement(StrEnum):
    """`complete`: each condition of coverage.py is met, or missed within what the user allows."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


class LeakKind(StrEnum):
    """The pointers to a block (`--reachability`), in the words of valgrind's memcheck."""

    STILL_REACHABLE = "still_reachable"  # a start-pointer, through blocks that are themselves still reachable
    POSSIBLY_LOST = "possibly_lost"  # only interior pointers, or through blocks that are possibly lost
    INDIRECTLY_LOST = "indirectly_lost"  # only other lost blocks
    DEFINITELY_LOST = "definitely_lost"  # nothing


class SymbolClass(StrEnum):
    """The symbols of a module that were found."""

    LINES = "lines"
    NAMES = "names"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Block:
    """One outstanding allocation (`--show-allocs`)."""

    address: Address
    size: Count
    age_ns: int
    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class LeakSum:
    """Blocks of one kind; of a sampled session, the sampled ones."""

    kind: LeakKind
    space: Count
    objects: Count


LEAKS = "by --reachability, in valgrind's words; of a sampled session, the sampled blocks"
Leaks = Annotated[tuple[LeakSum, ...], Meta(description=LEAKS)]


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """One process's part of a site."""

    pid: int
    space: Count
    objects: Count


AGE_BOUNDS_S = (1, 10, 60, 600, 3600)  # of CallSite.ages: below the first, …, from the last on
AGES = f"blocks by age: below {', '.join(map(str, AGE_BOUNDS_S))} seconds, and older"
PLACE = "index in the report's places"
LEFT_OUT = "outer frames, of a report with very many: the recording has them"
SHARES = "processes that hold the blocks, if several were measured; the largest first"


@dataclass(frozen=True, slots=True)
class CallSite:
    """Everything outstanding that one call stack allocated; frames innermost first. None = unknown to the tracer."""

    id: SiteId
    inuse_space: Count
    inuse_objects: Count
    alloc_space: Count | None
    alloc_objects: Count | None
    oldest_ns: int  # age of the oldest block at the snapshot
    kind: Kind
    end: End  # TraceEnd name
    frames: tuple[Frame, ...]
    stderr_space: Count | None = None
    growth: Growth | None = None  # None = not judged
    approximate: bool = False  # some blocks are attributed by an ambiguous stack key
    blocks: tuple[Block, ...] = ()
    suppressed_by: Annotated[RawText, Meta(description="the template that matched")] = ""
    leaks: Leaks = ()  # () = no --reachability
    ages: Annotated[tuple[Count, ...], Meta(description=AGES)] = ()  # () = unknown
    place: Annotated[int, Meta(ge=0, description=PLACE)] | None = None
    processes: Annotated[tuple[ProcessShare, ...], Meta(description=SHARES)] = ()  # () = one process
    unit: Unit = BYTE
    frames_left_out: Annotated[int, Meta(ge=0, description=LEFT_OUT)] = 0


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    module: RawText
    build_id: str
    symbols: SymbolClass


@dataclass(frozen=True, slots=True)
class Origin:
    """Provenance: tells one recording from others. "", 0 and () = unknown."""

    model: str = ""
    release: Annotated[str, Meta(description="of Android")] = ""
    api_level: Count = 0
    abi: Annotated[str, Meta(description="of the app")] = ""
    version: Annotated[str, Meta(description="versionName of the app")] = ""
    version_code: Count = 0
    labels: Annotated[tuple[tuple[str, str], ...], Meta(description="of --label")] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The measured program. `command` is the shell-quoted command line, "" when only a pid is known."""

    arch: str
    pid: int
    command: RawText
    tracer: str
    unwind: str
    sample_bytes: Annotated[int, Meta(ge=0, description="0: every allocation is recorded")]
    package: RawText | None = None
    serial: RawText | None = None
    exit_status: Annotated[int, Meta(description="wait status of the ended target")] | None = None
    attached: Annotated[bool, Meta(description="it ran already: older blocks are unknown")] = False
    origin: Origin = Origin()


UNASKED = "of the unattributed: omitted on purpose by --all"


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the whole live table; unattributed blocks are in inuse_* too."""

    inuse_space: Count
    inuse_objects: Count
    alloc_space: Count | None
    alloc_objects: Count | None
    unattributed_space: Count
    unattributed_objects: Count
    lost: Annotated[dict[str, Count], Meta(description="by cause, only what is not 0")]  # enum ml_lost
    untracked_frees: Count
    heap_bytes_of_target: Count | None = None
    tracer_cpu_s: float | None = None
    unasked_space: Annotated[int, Meta(ge=0, description=UNASKED)] = 0
    unasked_objects: Annotated[int, Meta(ge=0, description=UNASKED)] = 0


START_MISSING = "all but the C library's outermost frames, which start the program or thread"
CALLER_MISSING = "the function that called the allocator keeps no frame: its caller is passed over"


@dataclass(frozen=True, slots=True)
class FpAgreement:
    """Frame pointers against CFI (--unwind both), by stacks whose root CFI reaches."""

    stacks: Annotated[int, Meta(ge=0, description="compared; the sum of the next six")]
    identical: Count
    start_missing: Annotated[int, Meta(ge=0, description=START_MISSING)]
    cut: Annotated[int, Meta(ge=0, description="the chain ends early")]
    caller_missing: Annotated[int, Meta(ge=0, description=CALLER_MISSING)]
    skipped: Annotated[int, Meta(ge=0, description="frames further out are passed over")]
    wrong: Annotated[int, Meta(ge=0, description="the chain contains addresses that are not frames")]
    mean_common_prefix: Annotated[float, Meta(ge=0, description="frames from the innermost on")]
    mean_depth: Annotated[float, Meta(ge=0, description="frames by CFI")]

    @property
    def share(
        self,
    ) -> Annotated[float, Meta(ge=0, le=1, description="identical and start_missing of stacks")]:
        return (self.identical + self.start_missing) / max(self.stacks, 1)


@dataclass(frozen=True, slots=True)
class Unwinding:
    """Stacks of outstanding blocks by how they end; the names are those of TraceEnd."""

    stacks: Count
    complete: Count
    partial: Count
    ends: dict[str, int]
    fp_agreement: FpAgreement | None = None


@dataclass(frozen=True, slots=True)
class ThreadSum:
    """Blocks that one thread allocated."""

    pid: int
    tid: int
    space: Count
    objects: Count


@dataclass(frozen=True, slots=True)
class ProcessSum:
    """The heap of one of several processes."""

    pid: int
    name: Annotated[str, Meta(description="the kernel's; empty: unknown")]
    space: Count
    objects: Count
    complete_space: Annotated[int, Meta(ge=0, description="bytes of blocks whose stack reaches its root")]
    top_site: Annotated[str, Meta(description="id of its largest site; empty: no block has a stack")]


@dataclass(frozen=True, slots=True)
class SiteSum:
    id: RawText
    space: Count
    objects: Count


@dataclass(frozen=True, slots=True)
class Instant:
    """The heap at one moment; sites are its largest, the rest is in the sums only."""

    elapsed_ns: Count
    space: Count
    objects: Count
    sites: tuple[SiteSum, ...]


@dataclass(frozen=True, slots=True)
class PastSite:
    """A stack by what it held at the peak, or what it freed. objects null: unknown."""

    id: SiteId
    space: Count
    objects: Count | None
    kind: Kind
    end: End
    frames: tuple[Frame, ...]
    unit: Unit = BYTE


CACHES = "the allocator's resident bytes that are not tracked, estimated: free memory, headers, older blocks"
OF_HEAP = ("allocator", "anonymous")  # parts
UNTOUCHED = (
    "bytes of the tracked ones that are not resident, at least: reserved and never touched, or swapped out"
)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A process's last sample of its mappings, in bytes; tracked: its live allocations.

    parts: name, resident bytes, proportional bytes.
    """

    pid: int
    elapsed_ns: Count
    tracked: Count
    parts: tuple[tuple[str, int, int], ...]
    caches: Annotated[Count, Meta(description=CACHES)] | None = None
    untouched: Annotated[Count, Meta(description=UNTOUCHED)] = 0

    @property
    def heap(self) -> int:
        """Resident bytes where a heap may be."""
        return sum(resident for name, resident, _ in self.parts if name in OF_HEAP)


PEAK_LEVEL = "bytes, the most by counters that are read about four times a second; null: unknown"
PEAK_BOUND = "bytes: the peak was at most this much above space; absent: space is of the largest snapshot"


@dataclass(frozen=True, slots=True)
class Peak:
    """The heap when it held most; sites are its largest, the rest is in space only."""

    elapsed_ns: Count
    space: Count
    level: Annotated[int | None, Meta(description=PEAK_LEVEL)]
    sites: tuple[PastSite, ...]
    bound: Annotated[int, Meta(ge=0, description=PEAK_BOUND)] | None = None


class StopMoment(StrEnum):
    PREPARE = "prepare"  # room for moved code is searched, before the session
    ATTACH = "attach"
    DETACH = "detach"


@dataclass(frozen=True, slots=True)
class ThreadStop:
    """Threads were stopped to enter or leave the process: all at once, or the one that made our calls."""

    moment: StopMoment
    is_caller: bool
    duration_ns: Annotated[int, Meta(ge=0, description="of all: of the longest stopped one")]
    threads: Count
    pid: int


IN_ALL = (
    "of all blocks of the heap that have a stack, not of regions and handles: their places may grow beside it"
)
THREADS = "of the heap, the largest first"
CHURN = "allocated and freed since, by stack; most blocks first"


@dataclass(frozen=True, slots=True)
class Profile:
    """memleak-android's result at one instant. Sites are sorted by inuse_space, largest first."""

    measurement: Measurement
    target: Target
    duration_ns: Count
    totals: Totals
    unwinding: Unwinding
    modules: tuple[ModuleSummary, ...]
    sites: tuple[CallSite, ...]
    wall_clock_s: float  # when the snapshot was taken, seconds since the epoch
    notes: Annotated[tuple[RawText, ...], ALWAYS] = ()  # what the reader must know: older blocks invisible, …
    gate: Gate | None = None  # None = no limit, baseline or suppressions
    timeline: Annotated[tuple[Instant, ...], Meta(description="by --interval, the end last")] = ()
    growth_span: GrowthSpan | None = None  # None = one snapshot only
    threads: Annotated[tuple[ThreadSum, ...], Meta(description=THREADS)] = ()  # () = unknown
    processes: Annotated[tuple[ProcessSum, ...], Meta(description="if several were measured")] = ()
    memory: tuple[MemoryUse, ...] = ()  # of processes, the target's first; () = none could be read
    peak: Peak | None = None  # None = no earlier snapshot held more than the end
    churn: Annotated[tuple[PastSite, ...], Meta(description=CHURN)] = ()  # () = unknown
    leaks: Leaks = ()  # over all processes and kinds; () = no --reachability
    stops: tuple[ThreadStop, ...] = ()  # of a process that was attached; in order of time
    coverage: Coverage = ()  # () = unknown
    unowned: tuple[UnownedGrowth, ...] = ()  # parts of the process's memory that grow so
    places: Annotated[tuple[Place, ...], Meta(description=PLACES)] = ()
    heap_growth: Annotated[Growth, Meta(description=IN_ALL)] | None = None  # None = not judged
    answer: Answer | None = None  # None = of several recordings
    limits: tuple[MemoryLimit, ...] = ()  # () = none is known

    @property
    def unit(self) -> str:
        """Of its sums. With handles and memory in one session a handle counts as a byte."""
        return common_unit(site.unit for site in self.sites)

    @property
    def is_over_limit(self) -> bool:
        return self.gate is not None and self.gate.is_exceeded
