"""report.json: writing, reading back, and its JSON Schema, by the types of report_types.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.profile import (
    Block,
    CallSite,
    Frame,
    Gate,
    Growth,
    Instant,
    LeakKind,
    LeakSum,
    MemoryUse,
    PastSite,
    Peak,
    Profile,
    ThreadStop,
    Unwinding,
)
from memleak_android.host.profile.site_id import NAME_MAX
from memleak_android.host.reports.base import ReportOptions, bounded
from memleak_android.host.reports.json.types import (
    Report,
    ReportBlock,
    ReportFpAgreement,
    ReportFrame,
    ReportGate,
    ReportGrowth,
    ReportGrowthGate,
    ReportGrowthSpan,
    ReportInstant,
    ReportLeakSum,
    ReportMemory,
    ReportMemoryPart,
    ReportModule,
    ReportPastSite,
    ReportPeak,
    ReportProcess,
    ReportShare,
    ReportSite,
    ReportSiteSum,
    ReportStop,
    ReportStops,
    ReportStopSum,
    ReportSuppression,
    ReportTarget,
    ReportThread,
    ReportTotals,
    ReportUnwinding,
)
from memleak_android.host.reports.text.stops import StopSum

SCHEMA: Literal["memleak-android/report/1"] = "memleak-android/report/1"

T = TypeVar("T")

# What stands in JSON where sites and frames are put in. Quotes and line feeds within names are escaped.
_NO_SITES, _NO_FRAMES = '\n "sites": []', b'"frames":[]'
_FRAMES_KEPT_MAX = 1 << 17

ERROR_MAX = 200  # characters of an error that quotes the file
SURROGATE = re.compile("[\ud800-\udfff]")


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """One JSON object, a line for each frame, with a final newline. All sites, whatever options.top says.

    Sites are written one by one: all of them at once, as JSON or as objects to be encoded, can be gigabytes.
    """
    encoded = msgspec.json.encode(_without_sites(profile))
    before, mark, after = msgspec.json.format(encoded, indent=1).decode().partition(_NO_SITES)
    stream.write(before + mark.removesuffix("]"))
    show_allocs = options.show_allocs and not options.combined_only
    frames = _FrameLines()
    for number, site in enumerate(sorted(profile.sites, key=lambda one: -one.inuse_space)):
        head, _, tail = msgspec.json.encode(_site(site, show_allocs)).partition(_NO_FRAMES)
        lines = ",\n   ".join(frames.of(frame) for frame in site.frames)
        begin = ",\n  " if number else "\n  "
        stream.write(f'{begin}{head.decode()}"frames":[\n   {lines}]{tail.decode()}')
    stream.write(("\n ]" if profile.sites else "]") + after + "\n")


class _FrameLines:
    """Frames as JSON. Sites share them, as objects: each is encoded once, as far as _FRAMES_KEPT_MAX allows."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}  # by identity: the profile keeps them alive

    def of(self, frame: Frame) -> str:
        line = self._known.get(id(frame))
        if line is None:
            if len(self._known) == _FRAMES_KEPT_MAX:
                self._known.clear()
            line = self._known[id(frame)] = msgspec.json.encode(report_frame(frame)).decode()
        return line


def read_report(data: bytes, name: str) -> Report:
    """A report.json read back; fields of later minor versions are ignored. Raises UsageError naming `name`."""
    try:
        return msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"{name} is no {SCHEMA} file: {bounded(str(error), ERROR_MAX)}"
        raise UsageError(message, "write one with --json FILE") from error


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of report.json, as shipped in report.schema.json."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


def _without_sites(profile: Profile) -> Report:
    totals = profile.totals
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
            unasked_space=totals.unasked_space or UNSET,
            unasked_objects=totals.unasked_objects or UNSET,
        ),
        unwinding=_unwinding(profile.unwinding),
        symbols=[ReportModule(_utf8(m.module), m.build_id, m.symbols) for m in profile.modules],
        sites=[],
        taken_at=datetime.fromtimestamp(profile.wall_clock_s, UTC).isoformat(timespec="milliseconds"),
        notes=[_utf8(note) for note in profile.notes],
        gate=_gate(profile.gate) if profile.gate else UNSET,
        timeline=[_instant(one) for one in profile.timeline] or UNSET,
        growth=ReportGrowthSpan(**asdict(profile.growth)) if profile.growth else UNSET,
        threads=[ReportThread(t.pid, t.tid, t.space, t.objects) for t in profile.threads] or UNSET,
        leaks=_leaks(profile.leaks),
        stops=_stops(profile.stops) if profile.stops else UNSET,
        processes=[ReportProcess(**asdict(one) | {"name": _utf8(one.name)}) for one in profile.processes]
        or UNSET,
        memory=_memory(profile.memory[0]) if profile.memory else UNSET,
        memory_of_others=[_memory(one) for one in profile.memory[1:]] or UNSET,
        peak=_peak(profile.peak) if profile.peak else UNSET,
        churn=[_past_site(site) for site in profile.churn] or UNSET,
    )


def _memory(memory: MemoryUse) -> ReportMemory:
    parts = [ReportMemoryPart(*part) for part in memory.parts]
    return ReportMemory(memory.pid, memory.elapsed_ns, memory.tracked, parts, _known(memory.caches))


def _peak(peak: Peak) -> ReportPeak:
    sites = [_past_site(site) for site in peak.sites]
    bound = UNSET if peak.bound is None else peak.bound
    return ReportPeak(peak.elapsed_ns, peak.space, peak.level, sites, bound)


def _past_site(site: PastSite) -> ReportPastSite:
    frames = [report_frame(frame) for frame in site.frames]
    return ReportPastSite(site.id, site.space, site.objects, site.kind, site.end, frames)


def _leaks(leaks: Sequence[LeakSum]) -> dict[LeakKind, ReportLeakSum] | UnsetType:
    return {one.kind: ReportLeakSum(one.space, one.objects) for one in leaks} or UNSET


def _stops(stops: Sequence[ThreadStop]) -> ReportStops:
    sums = (StopSum.of(stops, is_caller) for is_caller in (False, True))
    together, caller = (ReportStopSum(**asdict(one)) if one else UNSET for one in sums)
    return ReportStops([ReportStop(**asdict(one)) for one in stops], together, caller)


def _instant(one: Instant) -> ReportInstant:
    sites = [ReportSiteSum(site.id, site.space, site.objects) for site in one.sites]
    return ReportInstant(one.elapsed_ns, one.space, one.objects, sites)


def _gate(gate: Gate) -> ReportGate:
    used = [ReportSuppression(_utf8(one.template), one.space, one.objects) for one in gate.suppressions]
    return ReportGate(
        limit_space=gate.limit_space,
        limit_objects=gate.limit_objects,
        space=gate.space,
        objects=gate.objects,
        culprits=list(gate.culprits),
        is_incomplete=gate.is_incomplete,
        baseline=_utf8(gate.baseline) if gate.baseline else UNSET,
        suppressions=used or UNSET,
        growth=ReportGrowthGate(**asdict(gate.growth)) if gate.growth else UNSET,
    )


def _target(profile: Profile) -> ReportTarget:
    target, origin = profile.target, profile.target.origin
    return ReportTarget(
        arch=target.arch,
        pid=target.pid,
        command=_utf8(target.command),
        tracer=target.tracer,
        unwind=target.unwind,
        sample_bytes=target.sample_bytes,
        package=_known(_utf8(target.package) if target.package is not None else None),
        serial=_known(_utf8(target.serial) if target.serial is not None else None),
        exit_status=_known(target.exit_status),
        model=_utf8(origin.model) or UNSET,
        release=_utf8(origin.release) or UNSET,
        api_level=origin.api_level or UNSET,
        abi=_utf8(origin.abi) or UNSET,
        version=_utf8(origin.version) or UNSET,
        version_code=origin.version_code or UNSET,
        labels={_utf8(name): _utf8(value) for name, value in origin.labels} or UNSET,
    )


def _unwinding(unwinding: Unwinding) -> ReportUnwinding:
    ends = {name: n for name, n in unwinding.ends.items() if name in ReportUnwinding.__struct_fields__}
    agreement = unwinding.fp_agreement
    told = UNSET if agreement is None else ReportFpAgreement(**asdict(agreement), share=agreement.share)
    counts = unwinding.stacks, unwinding.complete, unwinding.partial
    return ReportUnwinding(*counts, late=unwinding.late, fp_agreement=told, **ends)


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
        frames=[],  # see write()
        stderr_space=_known(site.stderr_space),
        growth_bytes_per_s=site.growth.bytes_per_s if site.growth else UNSET,
        growth=_growth(site.growth) if site.growth else UNSET,
        approximate=True if site.approximate else UNSET,
        blocks=[_block(block) for block in site.blocks] if show_allocs else UNSET,
        suppressed_by=_utf8(site.suppressed_by) if site.suppressed_by else UNSET,
        leaks=_leaks(site.leaks),
        ages=list(site.ages) or UNSET,
        processes=[ReportShare(one.pid, one.space, one.objects) for one in site.processes] or UNSET,
    )


def report_frame(frame: Frame) -> ReportFrame:
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


def _growth(growth: Growth) -> ReportGrowth:
    return ReportGrowth(growth.trend, growth.low, growth.high, growth.since_ns, growth.rise, growth.run_s)


def _block(block: Block) -> ReportBlock:
    return ReportBlock(f"{block.address:#x}", block.size, block.age_ns, block.pid, block.tid)


def _known(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def _utf8(text: str) -> str:
    """Bytes of a path that are no UTF-8 (surrogates, PEP 383) as U+FFFD: JSON cannot hold them. At most NAME_MAX long."""
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text[:NAME_MAX])
