"""report.json: the types, writing, reading back, and its JSON Schema. Fields are only added within a major."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TextIO, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from memleak_android.host.errors import UsageError
from memleak_android.host.profile import Block, CallSite, Frame, Profile, SymbolClass, Verdict
from memleak_android.host.reports.base import ReportOptions

SCHEMA: Literal["memleak-android/report/1"] = "memleak-android/report/1"

T = TypeVar("T")

SURROGATE = re.compile("[\ud800-\udfff]")

Address = Annotated[str, Meta(pattern="^0x[0-9a-f]+$")]
Count = Annotated[int, Meta(ge=0)]
Kind = Annotated[
    str,
    Meta(
        pattern="^(user|runtime|kernel|mmap|pair:.+)$",
        description="runtime: blocks of the C/C++ runtime itself that live until exit",
    ),
]
END = "why the stack ends; only ROOT is complete"
ID = "the same across runs; stacks through the same functions share it, whatever lines they pass"
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
    growth_bytes_per_s: float | UnsetType = UNSET
    approximate: bool | UnsetType = UNSET
    blocks: list[ReportBlock] | UnsetType = UNSET


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


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """One JSON object, indented, with a final newline. All sites, whatever options.top says."""
    encoded = msgspec.json.encode(to_report(profile, options))
    stream.write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def read_report(data: bytes, name: str) -> Report:
    """A report.json read back; fields of later minor versions are ignored. Raises UsageError naming `name`."""
    try:
        return msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"{name} is no {SCHEMA} file: {error}"
        raise UsageError(message, "write one with --json FILE") from error


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of report.json, as shipped in report.schema.json."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


def to_report(profile: Profile, options: ReportOptions) -> Report:
    totals, unwinding = profile.totals, profile.unwinding
    ends = {name: n for name, n in unwinding.ends.items() if name in ReportUnwinding.__struct_fields__}
    show_allocs = options.show_allocs and not options.combined_only
    return Report(
        schema=SCHEMA,
        verdict=profile.verdict,
        target=_target(profile),
        duration_ns=profile.duration_ns,
        totals=ReportTotals(
            inuse_space=totals.inuse_space,
            inuse_objects=totals.inuse_objects,
            alloc_space=totals.alloc_space,
            alloc_objects=totals.alloc_objects,
            unattributed_space=totals.unattributed_space,
            unattributed_objects=totals.unattributed_objects,
            lost=totals.lost,
            untracked_frees=totals.untracked_frees,
            heap_bytes_of_target=_known(totals.heap_bytes_of_target),
            tracer_cpu_s=_known(totals.tracer_cpu_s),
        ),
        unwinding=ReportUnwinding(unwinding.stacks, unwinding.complete, unwinding.partial, **ends),
        symbols=[ReportModule(_utf8(m.module), m.build_id, m.symbols) for m in profile.modules],
        sites=[_site(site, show_allocs) for site in sorted(profile.sites, key=lambda s: -s.inuse_space)],
        taken_at=datetime.fromtimestamp(profile.wall_clock_s, UTC).isoformat(timespec="milliseconds"),
        notes=[_utf8(note) for note in profile.notes],
    )


def _target(profile: Profile) -> ReportTarget:
    target = profile.target
    return ReportTarget(
        arch=target.arch,
        pid=target.pid,
        command=_utf8(target.command),
        tracer=target.tracer,
        unwind=target.unwind,
        sample_bytes=target.sample_bytes,
        package=_known(target.package),
        serial=_known(target.serial),
        exit_status=_known(target.exit_status),
    )


def _site(site: CallSite, show_allocs: bool) -> ReportSite:
    return ReportSite(
        id=site.id,
        inuse_space=site.inuse_space,
        inuse_objects=site.inuse_objects,
        alloc_space=site.alloc_space,
        alloc_objects=site.alloc_objects,
        oldest_ns=site.oldest_ns,
        kind=site.kind,
        end=site.end,
        frames=[_frame(frame) for frame in site.frames],
        stderr_space=_known(site.stderr_space),
        approximate=True if site.approximate else UNSET,
        blocks=[_block(block) for block in site.blocks] if show_allocs else UNSET,
    )


def _frame(frame: Frame) -> ReportFrame:
    return ReportFrame(
        address=f"{frame.address:#x}",
        module=_utf8(frame.module),
        build_id=frame.build_id,
        vaddr=f"{frame.vaddr:#x}",
        function=_utf8(frame.function),
        offset=frame.offset,
        inlined=frame.inlined,
        method=frame.method,
        file=_utf8(frame.file) if frame.file else UNSET,
        line=_known(frame.line),
    )


def _block(block: Block) -> ReportBlock:
    return ReportBlock(f"{block.address:#x}", block.size, block.age_ns, block.pid, block.tid)


def _known(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def _utf8(text: str) -> str:
    """Bytes of a path that are no UTF-8 (surrogates, PEP 383) as U+FFFD: JSON cannot hold them."""
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
