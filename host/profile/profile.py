"""Profile and CallSite: the one thing reports receive. Plain data, no behaviour beyond sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """`leaks` only where a limit or the verdict rules say so; `incomplete` where something is missing."""

    OK = "ok"
    LEAKS = "leaks"
    INCOMPLETE = "incomplete"


class LeakKind(StrEnum):
    """Who leads to a block (`--reachability`), in the words of valgrind's memcheck."""

    STILL_REACHABLE = "still_reachable"  # a start-pointer, through blocks that are themselves still reachable
    POSSIBLY_LOST = "possibly_lost"  # only interior pointers, or through blocks that are possibly lost
    INDIRECTLY_LOST = "indirectly_lost"  # only other lost blocks
    DEFINITELY_LOST = "definitely_lost"  # nothing


class SymbolClass(StrEnum):
    """What a module could be named with."""

    LINES = "lines"
    NAMES = "names"
    NONE = "none"


LATE = "late"  # method of a frame that was read after the call (unwind's Method.LATE)


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


class Trend(StrEnum):
    """What a site's memory does over the session; the rules are in docs/use/growth.md."""

    GROWS = "grows"
    BURST = "burst"  # nearly all of its rise at once
    PLATEAU = "plateau"  # rose, and then no more
    STEADY = "steady"


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one site, from `since_ns` (of the session) to the end. low, high: 95 % interval of bytes_per_s."""

    trend: Trend
    bytes_per_s: float
    low: float
    high: float
    since_ns: int
    rise: int  # bytes since then
    run_s: float = 0.0  # mean length of a run of --scenario; 0 = growth is by time


@dataclass(frozen=True, slots=True)
class GrowthSpan:
    """From when to when growth was looked at (nanoseconds of the session), at how many instants of those needed."""

    from_ns: int
    to_ns: int
    instants: int
    needed: int
    run_s: float = 0.0  # mean length of a run of --scenario, the instants being their ends; 0 = no scenario

    @property
    def is_judged(self) -> bool:
        return self.instants >= self.needed


@dataclass(frozen=True, slots=True)
class LeakSum:
    """What the blocks of one kind amount to; of a sampled session, the sampled ones."""

    kind: LeakKind
    space: int
    objects: int


@dataclass(frozen=True, slots=True)
class ProcessShare:
    pid: int
    space: int  # what this process holds of a site
    objects: int


AGE_BOUNDS_S = (1, 10, 60, 600, 3600)  # of CallSite.ages: below the first, …, from the last on


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
    suppressed_by: str = ""  # the template that matched (--suppressions)
    growth: Growth | None = None  # None = not judged
    leaks: tuple[LeakSum, ...] = ()  # by --reachability; () = not looked at
    processes: tuple[ProcessShare, ...] = ()  # largest first; () = the session's only one
    ages: tuple[int, ...] = ()  # blocks by age at the snapshot, between AGE_BOUNDS_S; () = not known


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    module: str
    build_id: str
    symbols: SymbolClass


@dataclass(frozen=True, slots=True)
class Origin:
    """Which of many a recording is: "", 0 and () = not told. version, version_code: the app's, as Android has them.

    abi: of the app on a device. labels: of --label, by name.
    """

    model: str = ""
    release: str = ""
    api_level: int = 0
    abi: str = ""
    version: str = ""
    version_code: int = 0
    labels: tuple[tuple[str, str], ...] = ()


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
    origin: Origin = Origin()


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
    unasked_space: int = 0  # of the unattributed: what --adaptive or --evidence-after left out
    unasked_objects: int = 0


@dataclass(frozen=True, slots=True)
class FpAgreement:
    """Of --unwind both: how far the chain of frame pointers agrees with unwind information (CFI), by stack.

    Each compared stack, one whose root CFI reaches, is counted once from `identical` to `wrong`.
    """

    stacks: int  # compared
    identical: int
    start_missing: int  # all but the C library's outermost frames, which start the program or thread
    cut: int  # the chain ends early
    caller_missing: int  # the function that called the allocator keeps no frame: its caller is passed over
    skipped: int  # frames further out are passed over
    wrong: int  # the chain names addresses that are no frames
    mean_common_prefix: float  # frames from the innermost on that are the same
    mean_depth: float  # frames by CFI

    @property
    def share(self) -> float:
        """Of the stacks that agree, up to where they start."""
        return (self.identical + self.start_missing) / max(self.stacks, 1)


@dataclass(frozen=True, slots=True)
class Unwinding:
    """How well the stacks of outstanding blocks could be unwound."""

    stacks: int
    complete: int
    partial: int
    ends: dict[str, int]  # by TraceEnd name
    fp_agreement: FpAgreement | None = None  # only of --unwind both
    late: int = 0  # with frames that were read after the call (--extend-stacks)


@dataclass(frozen=True, slots=True)
class ThreadSum:
    """What blocks that one thread allocated amount to."""

    pid: int
    tid: int
    space: int
    objects: int


@dataclass(frozen=True, slots=True)
class ProcessSum:
    """What one of several processes holds in its heap."""

    pid: int
    name: str  # the kernel's, "" = not known
    space: int
    objects: int
    complete_space: int  # bytes of blocks whose stack reaches its root
    top_site: str  # id of its largest site, "" = no block has a stack


@dataclass(frozen=True, slots=True)
class SiteSum:
    """What one site held."""

    id: str
    space: int
    objects: int


@dataclass(frozen=True, slots=True)
class Instant:
    """The heap at one moment of the session; sites are its largest, for the rest see the sums."""

    elapsed_ns: int
    space: int
    objects: int
    sites: tuple[SiteSum, ...]


@dataclass(frozen=True, slots=True)
class PastSite:
    """A stack by what it held once, or has given back, whatever it holds now. objects: None = not known."""

    id: str
    space: int
    objects: int | None
    kind: str
    end: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What the process used at its last look: parts are (name, resident bytes, proportional bytes) by mappings."""

    pid: int
    elapsed_ns: int
    tracked: int  # bytes of its live allocations
    parts: tuple[tuple[str, int, int], ...]
    caches: int | None = None  # what the allocator has beside them: an estimate, may be below 0


@dataclass(frozen=True, slots=True)
class Peak:
    """The heap when it held most; sites are its largest, the rest is in `space` only.

    bound: never was more held than so many bytes above; None = it is the earlier snapshot that held most.
    level: the most that counters saw, which are read oftener than snapshots; None = not known.
    """

    elapsed_ns: int
    space: int
    level: int | None
    sites: tuple[PastSite, ...]
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class SuppressionUse:
    """What a suppression's template matched."""

    template: str
    space: int
    objects: int


@dataclass(frozen=True, slots=True)
class GrowthGate:
    """What the stacks that grow amount to, against the limit of --fail-on-growth. Bytes per second.

    With a baseline only what they grow faster than there. error: half of the 95 % interval of `rate`.
    """

    limit: float
    rate: float
    error: float
    stacks: int
    run_s: float = 0.0  # mean length of a run of --scenario; 0 = growth is by time

    @property
    def is_exceeded(self) -> bool:
        return self.stacks > 0 and self.rate > self.limit


@dataclass(frozen=True, slots=True)
class Gate:
    """How the verdict came about: what counted, and against which limit (None = none).

    Counted are the sites that are neither the runtime's nor regions nor suppressed, and the blocks without a stack; with
    a baseline only what they grew by. culprits: ids of the sites that broke a limit, or of the counted ones where none was
    broken, the largest first.
    """

    limit_space: int | None
    limit_objects: int | None
    space: int
    objects: int
    culprits: tuple[str, ...]
    is_incomplete: bool  # beside the limit: something is missing
    baseline: str = ""  # its file
    suppressions: tuple[SuppressionUse, ...] = ()  # those that matched
    growth: GrowthGate | None = None  # None = no limit of growth, or growth could not be judged


class StopMoment(StrEnum):
    PREPARE = "prepare"  # room for moved code is looked for, before the session
    ATTACH = "attach"
    DETACH = "detach"


@dataclass(frozen=True, slots=True)
class ThreadStop:
    """Threads of the target stood still for us. is_caller: the one that made our calls, else all at once."""

    moment: StopMoment
    is_caller: bool
    duration_ns: int  # of all: of the one that stood longest
    threads: int
    pid: int


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
    threads: tuple[ThreadSum, ...] = ()  # of the heap, the largest first; () = not known
    processes: tuple[ProcessSum, ...] = ()  # largest first; () = there was one only
    timeline: tuple[Instant, ...] = ()  # by --interval, the end last
    memory: tuple[MemoryUse, ...] = ()  # of processes, the target's first; () = none could be looked at
    peak: Peak | None = None  # None = no earlier snapshot held more than the end
    churn: tuple[PastSite, ...] = ()  # what stacks allocated and gave back, most blocks first; () = not known
    gate: Gate | None = None  # where a limit, a baseline or suppressions were given
    growth: GrowthSpan | None = None  # None = one snapshot only
    stops: tuple[ThreadStop, ...] = ()  # of a process that was entered; in order of time
    leaks: tuple[LeakSum, ...] = ()  # by --reachability, over all processes and kinds; () = not looked at
