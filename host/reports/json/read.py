"""A report.json as the Profile that it was written from, for diff, baselines and other formats."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from memleak_android.host.profile.profile import (
    Block,
    CallSite,
    Frame,
    Gate,
    Growth,
    GrowthGate,
    GrowthSpan,
    Instant,
    LeakKind,
    LeakSum,
    MemoryUse,
    ModuleSummary,
    Origin,
    PastSite,
    Peak,
    ProcessShare,
    ProcessSum,
    Profile,
    SiteSum,
    SuppressionUse,
    Target,
    ThreadStop,
    ThreadSum,
    Totals,
    Unwinding,
)
from memleak_android.host.profile.site_id import site_id
from memleak_android.host.reports.base import bounded
from memleak_android.host.reports.json.types import (
    Report,
    ReportFrame,
    ReportGate,
    ReportGrowthGate,
    ReportInstant,
    ReportLeakSum,
    ReportMemory,
    ReportPastSite,
    ReportPeak,
    ReportSite,
    ReportStops,
    ReportTarget,
    ReportUnwinding,
)

T = TypeVar("T")
_COUNTS = {"stacks", "complete", "partial"}
_U64_MAX = 2**64 - 1


def to_profile(report: Report) -> Profile:
    """Ids are made anew from the frames, so that reports of versions with other ids compare.

    Names of functions, modules and files stay as they are, for the ids; reports escape them. All other text is
    escaped here: it is not expected to be hostile elsewhere.
    """
    target, totals, span = report.target, report.totals, _known(report.growth)
    return Profile(
        target=Target(
            arch=bounded(target.arch),
            pid=target.pid,
            command=target.command,
            tracer=bounded(target.tracer),
            unwind=bounded(target.unwind),
            sample_bytes=target.sample_bytes,
            package=_known(target.package),
            serial=_known(target.serial),
            exit_status=_known(target.exit_status),
            origin=_origin(target),
        ),
        duration_ns=report.duration_ns,
        verdict=report.verdict,
        totals=Totals(
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
            unasked_space=_known(totals.unasked_space) or 0,
            unasked_objects=_known(totals.unasked_objects) or 0,
        ),
        unwinding=_unwinding(report.unwinding),
        sites=tuple(_site(site) for site in report.sites),
        modules=tuple(ModuleSummary(one.module, bounded(one.build_id), one.class_) for one in report.symbols),
        wall_clock_s=_seconds(_known(report.taken_at)),
        notes=tuple(_known(report.notes) or ()),
        gate=_gate(_known(report.gate)),
        timeline=tuple(_instant(one) for one in _known(report.timeline) or ()),
        growth=None
        if span is None
        else GrowthSpan(span.from_ns, span.to_ns, span.instants, span.needed, span.run_s),
        threads=tuple(ThreadSum(t.pid, t.tid, t.space, t.objects) for t in _known(report.threads) or ()),
        processes=tuple(
            ProcessSum(
                one.pid, bounded(one.name), one.space, one.objects, one.complete_space, bounded(one.top_site)
            )
            for one in _known(report.processes) or ()
        ),
        leaks=_leaks(_known(report.leaks)),
        stops=_stops(_known(report.stops)),
        memory=_memories(report),
        peak=_peak(_known(report.peak)),
        churn=tuple(map(_past_site, _known(report.churn) or ())),
    )


def _origin(target: ReportTarget) -> Origin:
    labels = _known(target.labels) or {}
    return Origin(
        model=bounded(_known(target.model) or ""),
        release=bounded(_known(target.release) or ""),
        api_level=_known(target.api_level) or 0,
        abi=bounded(_known(target.abi) or ""),
        version=bounded(_known(target.version) or ""),
        version_code=_known(target.version_code) or 0,
        labels=tuple((bounded(name), bounded(value)) for name, value in labels.items()),
    )


def _leaks(leaks: dict[LeakKind, ReportLeakSum] | None) -> tuple[LeakSum, ...]:
    return tuple(LeakSum(kind, one.space, one.objects) for kind, one in (leaks or {}).items())


def _stops(stops: ReportStops | None) -> tuple[ThreadStop, ...]:
    return tuple(ThreadStop(**asdict(one)) for one in stops.each) if stops else ()


def _memories(report: Report) -> tuple[MemoryUse, ...]:
    first = _known(report.memory)
    return (_memory(first), *map(_memory, _known(report.memory_of_others) or ())) if first else ()


def _memory(memory: ReportMemory) -> MemoryUse:
    parts = tuple((bounded(one.name), one.resident, one.proportional) for one in memory.parts)
    return MemoryUse(memory.pid, memory.elapsed_ns, memory.tracked, parts, _known(memory.caches))


def _peak(peak: ReportPeak | None) -> Peak | None:
    if peak is None:
        return None
    return Peak(
        peak.elapsed_ns, peak.space, peak.level, tuple(map(_past_site, peak.sites)), _known(peak.bound)
    )


def _past_site(site: ReportPastSite) -> PastSite:
    frames = tuple(_frame(frame) for frame in site.frames)
    kind, end = bounded(site.kind), bounded(site.end)
    return PastSite(site_id(frames), site.space, site.objects, kind, end, frames)


def _instant(one: ReportInstant) -> Instant:
    sites = tuple(SiteSum(site.id, site.space, site.objects) for site in one.sites)
    return Instant(one.elapsed_ns, one.space, one.objects, sites)


def _gate(gate: ReportGate | None) -> Gate | None:
    if gate is None:
        return None
    used = _known(gate.suppressions) or ()
    return Gate(
        gate.limit_space,
        gate.limit_objects,
        gate.space,
        gate.objects,
        tuple(map(bounded, gate.culprits)),
        gate.is_incomplete,
        _known(gate.baseline) or "",
        tuple(SuppressionUse(one.template, one.space, one.objects) for one in used),
        _growth_gate(_known(gate.growth)),
    )


def _growth_gate(growth: ReportGrowthGate | None) -> GrowthGate | None:
    if growth is None:
        return None
    return GrowthGate(growth.limit, growth.rate, growth.error, growth.stacks, growth.run_s)


def _unwinding(unwinding: ReportUnwinding) -> Unwinding:
    fields = {name: getattr(unwinding, name) for name in ReportUnwinding.__struct_fields__ if name.isupper()}
    ends = {name: count for name, count in fields.items() if count}
    return Unwinding(unwinding.stacks, unwinding.complete, unwinding.partial, ends, late=unwinding.late)


def _site(site: ReportSite) -> CallSite:
    frames = tuple(_frame(frame) for frame in site.frames)
    return CallSite(
        id=site_id(frames),
        inuse_space=site.inuse_space,
        inuse_objects=site.inuse_objects,
        alloc_space=site.alloc_space,
        alloc_objects=site.alloc_objects,
        oldest_ns=site.oldest_ns,
        kind=bounded(site.kind),
        end=bounded(site.end),
        frames=frames,
        approximate=bool(_known(site.approximate)),
        stderr_space=_known(site.stderr_space),
        blocks=tuple(
            Block(int(one.address, 16), one.size, one.age_ns, one.pid, one.tid)
            for one in _known(site.blocks) or ()
        ),
        suppressed_by=_known(site.suppressed_by) or "",
        growth=_growth(site),
        leaks=_leaks(_known(site.leaks)),
        ages=tuple(_known(site.ages) or ()),
        processes=tuple(
            ProcessShare(one.pid, one.space, one.objects) for one in _known(site.processes) or ()
        ),
    )


def _growth(site: ReportSite) -> Growth | None:
    rate, one = _known(site.growth_bytes_per_s), _known(site.growth)
    if rate is None or one is None:
        return None
    return Growth(one.trend, rate, one.low, one.high, one.since_ns, one.rise, one.run_s)


def _frame(frame: ReportFrame) -> Frame:
    return Frame(
        min(int(frame.address, 16), _U64_MAX),
        frame.module,
        bounded(frame.build_id),
        min(int(frame.vaddr, 16), _U64_MAX),
        frame.function,
        frame.offset,
        _known(frame.file),
        _known(frame.line),
        frame.inlined,
        bounded(frame.method),
    )


def _known(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


def _seconds(taken_at: str | None) -> float:
    """0.0 where it is no time."""
    try:
        return datetime.fromisoformat(taken_at or "").timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
