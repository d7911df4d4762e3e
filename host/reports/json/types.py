"""The types of report.json, from which its JSON Schema is made. Fields are only added within a major."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from memleak_android.host.profile.profile import (
    AGE_BOUNDS_S,
    LeakKind,
    StopMoment,
    SymbolClass,
    Trend,
    Verdict,
)

Address = Annotated[str, Meta(pattern="^0x[0-9a-f]+$")]
Count = Annotated[int, Meta(ge=0)]
Kind = Annotated[
    str,
    Meta(
        pattern="^(user|runtime|kernel|mmap|pair:.+)$",
        description="runtime: blocks of the C/C++ runtime itself that live until exit",
    ),
]
LEAKS = "by --reachability, in valgrind's words; of a sampled session, the sampled blocks"
END = "why the stack ends; only ROOT is complete"
ID = "the same across runs; stacks through the same functions share it, whatever lines they pass"
START_MISSING = "all but the C library's outermost frames, which start the program or thread"
CALLER_MISSING = "the function that called the allocator keeps no frame: its caller is passed over"
GROWTH = "by Theil and Sen over the session's snapshots, whatever the trend"
RUN = "mean seconds of a run of --scenario: times growth_bytes_per_s it is growth by run"
CULPRITS = "ids of the sites that broke a limit (where none was broken: that counted), the largest first"
STOPS = "of a process that was entered while it ran"
LEVEL = "bytes, the most by counters that are read about four times a second; null: not known"
BOUND = "bytes: never was more held than so much above space; absent: space is of the snapshot that held most"
CHURN = "allocated and given back since, by stack; most blocks first"
AGES = f"blocks by age: below {', '.join(map(str, AGE_BOUNDS_S))} seconds, and older"
UNASKED = "of the unattributed: left out on purpose (--adaptive, --evidence-after)"
SHARES = "whose blocks they are, where several processes were measured; the largest first"
METHOD = "by which evidence the frame was found"


class ReportTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    arch: str
    pid: int
    command: str
    tracer: str
    unwind: str
    sample_bytes: Annotated[int, Meta(ge=0, description="0: every allocation is recorded")]
    package: str | UnsetType = UNSET
    serial: str | UnsetType = UNSET
    exit_status: Annotated[int, Meta(description="wait status of the ended target")] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    release: Annotated[str, Meta(description="of Android")] | UnsetType = UNSET
    api_level: Count | UnsetType = UNSET
    abi: Annotated[str, Meta(description="of the app")] | UnsetType = UNSET
    version: Annotated[str, Meta(description="versionName of the app")] | UnsetType = UNSET
    version_code: Count | UnsetType = UNSET
    labels: Annotated[dict[str, str], Meta(description="of --label")] | UnsetType = UNSET


class ReportTotals(msgspec.Struct, frozen=True):
    """Sums over the whole live table; unattributed blocks are in inuse_* too."""

    inuse_space: Count
    inuse_objects: Count
    alloc_space: Count | None
    alloc_objects: Count | None
    unattributed_space: Count
    unattributed_objects: Count
    lost: Annotated[dict[str, Count], Meta(description="by cause, only what is not 0")]
    untracked_frees: Count
    heap_bytes_of_target: Count | UnsetType = UNSET
    tracer_cpu_s: float | UnsetType = UNSET
    unasked_space: Annotated[int, Meta(ge=0, description=UNASKED)] | UnsetType = UNSET
    unasked_objects: Annotated[int, Meta(ge=0, description=UNASKED)] | UnsetType = UNSET


class ReportFpAgreement(msgspec.Struct, frozen=True):
    """Of --unwind both: stacks whose root CFI reaches, by how the chain of frame pointers agrees with it."""

    stacks: Annotated[int, Meta(ge=0, description="compared; the sum of the next six")]
    identical: Count
    start_missing: Annotated[int, Meta(ge=0, description=START_MISSING)]
    cut: Annotated[int, Meta(ge=0, description="the chain ends early")]
    caller_missing: Annotated[int, Meta(ge=0, description=CALLER_MISSING)]
    skipped: Annotated[int, Meta(ge=0, description="frames further out are passed over")]
    wrong: Annotated[int, Meta(ge=0, description="the chain names addresses that are no frames")]
    mean_common_prefix: Annotated[float, Meta(ge=0, description="frames from the innermost on")]
    mean_depth: Annotated[float, Meta(ge=0, description="frames by CFI")]
    share: Annotated[float, Meta(ge=0, le=1, description="identical and start_missing of stacks")]


class ReportUnwinding(msgspec.Struct, frozen=True):
    """Stacks by how they end; the names are those of TraceEnd."""

    stacks: Count
    complete: Count
    partial: Count
    ROOT: Count = 0
    NO_MAPPING: Count = 0
    NO_UNWIND_ROW: Count = 0
    STACK_TRUNCATED: Count = 0
    NO_PROGRESS: Count = 0
    UNSUPPORTED_RULE: Count = 0
    MAX_FRAMES: Count = 0
    late: Annotated[
        int, Meta(ge=0, description="with frames that were read after the call, and proved to be its own")
    ] = 0
    fp_agreement: ReportFpAgreement | UnsetType = UNSET


class ReportModule(msgspec.Struct, frozen=True):
    module: str
    build_id: str
    class_: SymbolClass = msgspec.field(name="class")


class ReportFrame(msgspec.Struct, frozen=True):
    """A function; offset from its start, 0 for inlined ones. module "" = no mapping, function "" = no name."""

    address: Address
    module: str
    build_id: str
    vaddr: Address
    function: str
    offset: int
    inlined: bool
    method: Annotated[str, Meta(description=METHOD)]
    file: str | UnsetType = UNSET
    line: Count | UnsetType = UNSET


class ReportBlock(msgspec.Struct, frozen=True):
    address: Address
    size: Count
    age_ns: int
    pid: int
    tid: int


class ReportGrowth(msgspec.Struct, frozen=True, omit_defaults=True):
    """How sure growth_bytes_per_s is (95 % from low to high), since when, and of which kind; see docs/use/growth.md."""

    trend: Trend
    low: float
    high: float
    since_ns: Annotated[int, Meta(ge=0, description="of the session")]
    rise: Annotated[int, Meta(description="bytes since then")]
    run_s: Annotated[float, Meta(description=RUN)] = 0.0


class ReportGrowthSpan(msgspec.Struct, frozen=True, omit_defaults=True):
    """When growth was looked at; sites have none where the instants were fewer than needed."""

    from_ns: Count
    to_ns: Count
    instants: Count
    needed: Count
    run_s: Annotated[float, Meta(description=RUN)] = 0.0


class ReportLeakSum(msgspec.Struct, frozen=True):
    space: Count
    objects: Count


ReportLeaks = Annotated[dict[LeakKind, ReportLeakSum], Meta(description=LEAKS)]


class ReportShare(msgspec.Struct, frozen=True):
    """What one process holds of a site."""

    pid: int
    space: Count
    objects: Count


class ReportSite(msgspec.Struct, frozen=True):
    """Everything outstanding that one call stack allocated; frames innermost first."""

    id: Annotated[str, Meta(description=ID)]
    inuse_space: Count
    inuse_objects: Count
    alloc_space: Count | None
    alloc_objects: Count | None
    oldest_ns: int
    kind: Kind
    end: Annotated[str, Meta(description=END)]
    frames: list[ReportFrame]
    stderr_space: Count | UnsetType = UNSET
    growth_bytes_per_s: Annotated[float, Meta(description=GROWTH)] | UnsetType = UNSET
    growth: ReportGrowth | UnsetType = UNSET
    approximate: bool | UnsetType = UNSET
    blocks: list[ReportBlock] | UnsetType = UNSET
    suppressed_by: Annotated[str, Meta(description="the template that matched")] | UnsetType = UNSET
    leaks: ReportLeaks | UnsetType = UNSET
    ages: Annotated[list[Count], Meta(description=AGES)] | UnsetType = UNSET
    processes: Annotated[list[ReportShare], Meta(description=SHARES)] | UnsetType = UNSET


class ReportProcess(msgspec.Struct, frozen=True):
    """What one of several processes holds in its heap."""

    pid: int
    name: Annotated[str, Meta(description="the kernel's; empty: not known")]
    space: Count
    objects: Count
    complete_space: Annotated[int, Meta(ge=0, description="bytes of blocks whose stack reaches its root")]
    top_site: Annotated[str, Meta(description="id of its largest site; empty: no block has a stack")]


class ReportThread(msgspec.Struct, frozen=True):
    """What blocks that one thread allocated amount to."""

    pid: int
    tid: int
    space: Count
    objects: Count


class ReportSiteSum(msgspec.Struct, frozen=True):
    id: str
    space: Count
    objects: Count


class ReportInstant(msgspec.Struct, frozen=True):
    """The heap at one moment; sites are its largest, the rest is in the sums only."""

    elapsed_ns: Count
    space: Count
    objects: Count
    sites: list[ReportSiteSum]


class ReportPastSite(msgspec.Struct, frozen=True):
    """A stack by what it held once, or has given back. objects null: not known."""

    id: Annotated[str, Meta(description=ID)]
    space: Count
    objects: Count | None
    kind: Kind
    end: Annotated[str, Meta(description=END)]
    frames: list[ReportFrame]


CACHES = (
    "resident bytes of the allocator's that are not tracked, an estimate: free memory, headers, older blocks"
)


OTHERS = "of the processes beside the first, those that held most"


class ReportMemoryPart(msgspec.Struct, frozen=True):
    name: str
    resident: Count
    proportional: Annotated[int, Meta(ge=0, description="shared pages divided among their users")]


class ReportMemory(msgspec.Struct, frozen=True):
    """What a process used at its last look, by its mappings, in bytes; tracked: its live allocations."""

    pid: int
    elapsed_ns: Count
    tracked: Count
    parts: list[ReportMemoryPart]
    caches: Annotated[int, Meta(description=CACHES)] | UnsetType = UNSET


class ReportPeak(msgspec.Struct, frozen=True):
    """The heap when it held most; sites are its largest, the rest is in space only."""

    elapsed_ns: Count
    space: Count
    level: Annotated[int | None, Meta(description=LEVEL)]
    sites: list[ReportPastSite]
    bound: Annotated[int, Meta(description=BOUND, ge=0)] | UnsetType = UNSET


class ReportSuppression(msgspec.Struct, frozen=True):
    """What a suppression's template matched."""

    template: str
    space: Count
    objects: Count


class ReportGrowthGate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of --fail-on-growth, in bytes per second: the limit, and what the stacks that grow do together."""

    limit: float
    rate: float
    error: Annotated[float, Meta(ge=0, description="half of the 95 % interval of rate")]
    stacks: Count
    run_s: Annotated[float, Meta(description=RUN)] = 0.0


class ReportGate(msgspec.Struct, frozen=True):
    """How the verdict came about: what counted, and the limit (null: none)."""

    limit_space: Count | None
    limit_objects: Count | None
    space: Count
    objects: Count
    culprits: Annotated[list[str], Meta(description=CULPRITS)]
    is_incomplete: Annotated[bool, Meta(description="beside the limit: something is missing")]
    baseline: str | UnsetType = UNSET
    suppressions: list[ReportSuppression] | UnsetType = UNSET
    growth: ReportGrowthGate | UnsetType = UNSET


class ReportStop(msgspec.Struct, frozen=True):
    """Threads stood still while the process was entered or left: all at once, or the one that made our calls."""

    moment: StopMoment
    is_caller: bool
    duration_ns: Annotated[int, Meta(ge=0, description="of all: of the one that stood longest")]
    threads: Count
    pid: int


class ReportStopSum(msgspec.Struct, frozen=True):
    stops: Count
    median_ns: Count
    max_ns: Count


class ReportStops(msgspec.Struct, frozen=True):
    """all_threads: whenever all stood still. caller: the thread that made our calls."""

    each: list[ReportStop]
    all_threads: ReportStopSum | UnsetType = UNSET
    caller: ReportStopSum | UnsetType = UNSET


class Report(msgspec.Struct, frozen=True):
    """memleak-android's result at one instant. Sites are sorted by inuse_space, largest first."""

    schema: Literal["memleak-android/report/1"]
    verdict: Verdict
    target: ReportTarget
    duration_ns: Count
    totals: ReportTotals
    unwinding: ReportUnwinding
    symbols: list[ReportModule]
    sites: list[ReportSite]
    taken_at: Annotated[str, Meta(description="ISO 8601, UTC")] | UnsetType = UNSET
    notes: list[str] | UnsetType = UNSET
    gate: ReportGate | UnsetType = UNSET
    timeline: Annotated[list[ReportInstant], Meta(description="by --interval, the end last")] | UnsetType = (
        UNSET
    )
    growth: ReportGrowthSpan | UnsetType = UNSET
    threads: Annotated[list[ReportThread], Meta(description="of the heap, the largest first")] | UnsetType = (
        UNSET
    )
    processes: Annotated[list[ReportProcess], Meta(description="where there were several")] | UnsetType = (
        UNSET
    )
    memory: ReportMemory | UnsetType = UNSET
    memory_of_others: Annotated[list[ReportMemory], Meta(description=OTHERS)] | UnsetType = UNSET
    peak: ReportPeak | UnsetType = UNSET
    churn: Annotated[list[ReportPastSite], Meta(description=CHURN)] | UnsetType = UNSET
    leaks: ReportLeaks | UnsetType = UNSET
    stops: Annotated[ReportStops, Meta(description=STOPS)] | UnsetType = UNSET
