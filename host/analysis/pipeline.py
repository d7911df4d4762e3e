"""Survivors → Profile: sums, growth, names, and whether it is complete."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.balance import (
    growth_of_regions,
    is_unread,
    is_unused,
    new_regions,
    steady_regions,
    unowned_growth,
    with_growing_regions,
)
from memleak_android.host.analysis.block_sums import (
    BlockSums,
    StackSums,
    held_blocks,
    largest_sums,
    sum_blocks,
    without_stacks,
)
from memleak_android.host.analysis.coverage import judge_coverage
from memleak_android.host.analysis.growth_by_place import judge_places, with_packages
from memleak_android.host.analysis.growth_by_stack import SessionGrowth, session_growth, times_of_marks
from memleak_android.host.analysis.memory_use import read_memory
from memleak_android.host.analysis.process_sums import process_names, process_sums, shares_by_stack
from memleak_android.host.analysis.provenance import read_provenance
from memleak_android.host.analysis.sites import (
    ProgressCallback,
    SiteNamer,
    end_name,
    holding_stacks,
    make_sites,
    no_progress,
)
from memleak_android.host.analysis.totals import make_totals
from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.keys import KeyStacks, key_stacks
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.answer import MemoryLimit
from memleak_android.host.profile.answering import answer_of
from memleak_android.host.profile.coverage import is_sufficient, what_lacks
from memleak_android.host.profile.field_types import NO_LEAKS
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend, UnownedGrowth, UnownedPart, grows
from memleak_android.host.profile.ownership import NO_PATTERNS, Ownership
from memleak_android.host.profile.profile import (
    CallSite,
    FpAgreement,
    Measurement,
    MemoryUse,
    PastSite,
    Peak,
    Profile,
    StopMoment,
    Target,
    ThreadStop,
    Totals,
    Unwinding,
)
from memleak_android.host.profile.runtime_sites import imports_python_module
from memleak_android.host.profile.site_id import PlaceNumbers
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.host.wire.blocks import (
    FIRST_REGION_FUNCTION,
    STOP,
    ArchNumber,
    Reason,
    Stopped,
)
from memleak_android.host.wire.blocks import StopMoment as MomentNumber
from memleak_android.unwind.trace import TraceEnd

_REMARKS_SHOWN_MAX = 20
_KEPT_SHARE_MIN = (
    0.1  # of the heap's growth: what less the allocator keeps lies in its size classes and fragments
)
_OLDER_SHARE_MIN = (
    0.5  # frees of blocks from before the session, for each block held: fewer do not make up for them
)
_STOPS_MAX = 1024  # many times what the agent reports in one session


@dataclass(frozen=True, slots=True)
class View:
    """Selects the survivors that a profile shows. Ages and sizes limit its sites, never its totals."""

    older_ns: int = 0
    min_size: int = 0
    max_size: int = 2**64 - 1
    show_allocs: bool = False
    max_lost: float = 0.001  # share
    warmup_ns: int | None = 0  # growth is judged from then on; None = not at all
    cooldown_ns: int = 0  # … and until so long before the end
    limit: int = 0  # bytes of resident memory that the user names; 0 = none
    ownership: Ownership = NO_PATTERNS
    most_sites: int = 0  # 0 = all; else about as many: those that hold most, hold most blocks, grow fastest


def make_profile(
    capture: Capture,
    survivors: Survivors,
    symbolizer: Symbolizer,
    view: View,
    missing: Sequence[str] = (),
    progress: ProgressCallback = no_progress,
) -> Profile:
    """missing: sentences about what the reader of the capture knows to be missing; each makes the result incomplete."""
    progress("summing up", 0.0)
    keys, sums, growth = _sums_and_growth(capture, survivors, view)  # its columns over the blocks are freed
    tracing = capture.session.tracing
    namer = SiteNamer(survivors.stacks, survivors.files, symbolizer, tracing, view.ownership)
    shown = sums.shown
    if not tracing.lists_regions:
        shown = without_stacks(shown, steady_regions(survivors.stacks, growth))
    shown = largest_sums(shown, growth.by_stack, view.most_sites) if view.most_sites else shown
    shares, numbers = shares_by_stack(sums.shown_by_process), PlaceNumbers()
    sites = make_sites(shown, sums, namer, growth.by_stack, shares, numbers, progress)
    modules = namer.modules()
    totals = make_totals(capture, survivors.snapshot, sums)
    now_ns = survivors.snapshot.timestamp_ns or capture.last_timestamp_ns
    begin_ns, is_end = _begin_ns(capture), view.warmup_ns is not None
    reserved = growth_of_regions(survivors.stacks, growth)
    heap_growth = _heap_growth(survivors.stacks, growth)
    has_owner = _has_owner([*growth.by_stack.values(), *([heap_growth] if heap_growth else [])], sites)
    # Imported modules own resident memory (has_owner), but the program does not grow by them.
    growth = growth.without_once(namer.with_frame(imports_python_module))
    heap_growth = _heap_growth(survivors.stacks, growth)
    counts = _that_counts(_unowned(capture, view, begin_ns, now_ns), reserved, totals, has_owner, heap_growth)
    unowned = with_growing_regions(counts, new_regions(survivors.stacks, growth), reserved)
    owned = (UnownedPart.RESIDENT, UnownedPart.GROWING_REGIONS, *([UnownedPart.REGIONS] if reserved else []))
    without_owner = [each for each in unowned if each.part not in owned]
    unread = _is_unbalanced(capture, view, begin_ns, now_ns, growth.span)
    coverage = judge_coverage(capture, totals, sites, view.max_lost, missing, without_owner, unread)
    places, freed_sites = judge_places(sites, holding_stacks(shown), numbers, growth, namer)
    profile = Profile(
        target=_target(capture),
        duration_ns=max(0, now_ns - begin_ns),
        measurement=Measurement.COMPLETE if is_sufficient(coverage) else Measurement.INCOMPLETE,
        totals=totals,
        unwinding=_unwinding(sites, survivors.fp_agreement),
        sites=(*sites, *freed_sites),
        modules=modules,
        wall_clock_s=_wall_clock_s(capture, now_ns),
        notes=(*what_lacks(coverage), *_notes(capture, view, totals), *symbolizer.notes),
        threads=sums.threads,
        processes=process_sums(sums.by_process, process_names(capture), namer),
        growth_span=growth.span,
        stops=thread_stops(capture),
        memory=read_memory(capture.session.findings.memory, begin_ns) if is_end else (),
        peak=peak_of(capture, keys, namer, sums.is_sampled) if is_end else None,
        churn=churn_sites(sums.stacks, namer) if is_end else (),
        leaks=sums.all_leaks,
        coverage=coverage,
        unowned=unowned,
        places=places,
        heap_growth=heap_growth if tracing.traces_heap else None,
    )
    return _answered(profile, capture, survivors, symbolizer, view) if is_end else profile


def _answered(
    profile: Profile, capture: Capture, survivors: Survivors, symbolizer: Symbolizer, view: View
) -> Profile:
    places = with_packages(profile.places, survivors.files, symbolizer.packages)
    limits = _limits(capture, view, profile.memory)
    return replace(profile, answer=answer_of(profile), limits=limits, places=places)


def _limits(capture: Capture, view: View, memory: Sequence[MemoryUse]) -> tuple[MemoryLimit, ...]:
    found = [MemoryLimit(*each) for each in capture.session.findings.limits]
    if view.limit and memory:
        found.append(MemoryLimit("--limit", view.limit, sum(resident for _, resident, _ in memory[0].parts)))
    return tuple(found)


def _heap_growth(table: StackTable, growth: SessionGrowth) -> Growth | None:
    """Of the heap. Regions may be reserved and never used: they are judged one by one, and by what is resident."""
    if growth.history is None:
        return None
    return growth.history.judge_heap(table.traces["function"][table.first_trace] < FIRST_REGION_FUNCTION)


def _unowned(capture: Capture, view: View, begin_ns: int, now_ns: int) -> tuple[UnownedGrowth, ...]:
    """Over the time in which growth is judged."""
    if view.warmup_ns is None:
        return ()
    balances = capture.session.findings.balances
    return unowned_growth(balances, begin_ns, begin_ns + view.warmup_ns, now_ns - view.cooldown_ns)


def _is_unbalanced(capture: Capture, view: View, begin_ns: int, now_ns: int, span: GrowthSpan | None) -> bool:
    """On this machine only: a reading of a device may take longer than a short session has."""
    if span is None or not span.is_judged or view.warmup_ns is None or capture.session.target.serial:
        return False
    return is_unread(
        capture.session.findings.balances[0], begin_ns + view.warmup_ns, now_ns - view.cooldown_ns
    )


def _has_owner(judged: Sequence[Growth], sites: Sequence[CallSite]) -> bool:
    """Whether growth of resident memory is explained: a stack or the heap grows, or blocks are held that were not judged."""
    if judged:
        return any(each.trend is Trend.GROWS for each in judged)
    return any(site.kind not in NO_LEAKS for site in sites)


def _that_counts(
    unowned: Sequence[UnownedGrowth], reserved: float, totals: Totals, has_owner: bool, heap: Growth | None
) -> tuple[UnownedGrowth, ...]:
    """reserved: bytes per second of regions that grow. Their own stacks tell of them where they are used, and no others grow."""
    left_out = set[UnownedPart]()
    least = _KEPT_SHARE_MIN * heap.bytes_per_s if heap is not None and grows(heap) else 0.0
    if any(each.part is UnownedPart.ALLOCATOR and each.bytes_per_s < least for each in unowned):
        left_out.add(UnownedPart.ALLOCATOR)
    if totals.untracked_frees < _OLDER_SHARE_MIN * totals.inuse_objects or not totals.untracked_frees:
        left_out.add(UnownedPart.OLDER)
    written = [one for one in unowned if one.part is UnownedPart.REGIONS]
    if reserved and not any(is_unused(one, reserved) or one.low > reserved for one in written):
        left_out.add(UnownedPart.REGIONS)
    if has_owner or {each.part for each in unowned} - {UnownedPart.RESIDENT, UnownedPart.OLDER}:
        left_out.add(UnownedPart.RESIDENT)
    return tuple(each for each in unowned if each.part not in left_out)


def _sums_and_growth(
    capture: Capture, survivors: Survivors, view: View
) -> tuple[KeyStacks, BlockSums, SessionGrowth]:
    snapshot = survivors.snapshot
    now_ns = snapshot.timestamp_ns
    is_omitted = attribution.is_omitted(capture.session.tracing, snapshot.live)
    shown = attribution.select(snapshot.live, now_ns, view.older_ns, view.min_size, view.max_size)
    keys, held = key_stacks(survivors.stacks), held_blocks(survivors)
    is_whole = capture.session.target.is_whole_machine
    sums = sum_blocks(held, keys, snapshot.keys, now_ns, shown, is_omitted, view.show_allocs, is_whole)
    if view.warmup_ns is None:
        return keys, sums, SessionGrowth(None, {})
    return keys, sums, session_growth(capture, held, keys, now_ns, view.warmup_ns, view.cooldown_ns)


def _begin_ns(capture: Capture) -> int:
    return int(capture.hello["monotonic_ns"]) if capture.hello is not None else capture.last_timestamp_ns


def _target(capture: Capture) -> Target:
    session, hello = capture.session, capture.hello
    number = int(hello["arch"]) if hello is not None else 0
    status = int(capture.end["status"]) if capture.end is not None else -1
    ended = capture.end is not None and int(capture.end["reason"]) == Reason.TARGET_EXIT
    return Target(
        arch=ArchNumber(number).name.lower() if number in set(ArchNumber) else "unknown",
        pid=target_pid(capture),
        command=session.target.command,
        tracer=session.tracing.tracer,
        unwind=session.tracing.unwind_mode,
        sample_bytes=session.tracing.sample_bytes,
        exit_status=status if ended and status >= 0 else None,
        attached=session.target.is_attached,
        package=session.target.package or None,
        serial=session.target.serial or None,
        origin=read_provenance(session.origin),
    )


def target_pid(capture: Capture) -> int:
    """0 = not known, or the whole machine. A command's is known from its first event only."""
    if capture.session.target.is_whole_machine:
        return 0
    of_hello = int(capture.hello["pid"]) if capture.hello is not None else 0
    started = (int(rows["pid"][0]) for rows in capture.processes if len(rows))
    return capture.session.target.pid or of_hello or next(started, 0)


def _notes(capture: Capture, view: View, totals: Totals) -> list[str]:
    session = capture.session
    notes = list(session.findings.left_out)
    notes += attribution.omission_notes(totals.unasked_space, totals.unasked_objects)
    marked, times = times_of_marks(capture)
    if marked and not session.findings.has_scenario and view.warmup_ns is not None:
        notes.append(
            f"growth is judged from mark to mark: {marked} was set {len(times)} times, each is a run"
        )
    if session.target.is_attached:
        notes.append("blocks allocated before the tracer attached are invisible")
    if session.target.is_attached and capture.end is not None:
        reason, status = int(capture.end["reason"]), int(capture.end["status"])
        if reason == Reason.TARGET_EXIT and status < 0:
            notes.append("the process ended; the kernel showed its exit status to its parent only")
    notes += _moment_of_kernel(capture)
    if view.min_size or view.max_size < 2**64 - 1:
        notes.append("sites are limited by size (-z, -Z); totals are not")
    return notes + list(dict.fromkeys(capture.remarks))[:_REMARKS_SHOWN_MAX]


def _moment_of_kernel(capture: Capture) -> list[str]:
    """Of a command: what the kernel holds differs much between before its end and after it."""
    if capture.end is None or not capture.session.tracing.is_kernel_of_command:
        return []
    if int(capture.end["reason"]) == Reason.TARGET_EXIT:
        return [
            "of the kernel's memory what is held after the command's end is shown (--interval: while it runs)"
        ]
    return ["of the kernel's memory what is held while the command still runs is shown"]


def _unwinding(sites: Sequence[CallSite], fp_agreement: FpAgreement | None) -> Unwinding:
    ends: dict[str, int] = {}
    for site in sites:
        ends[site.end] = ends.get(site.end, 0) + 1
    complete = ends.get(TraceEnd.ROOT.name, 0)
    return Unwinding(len(sites), complete, len(sites) - complete, ends, fp_agreement)


def _wall_clock_s(capture: Capture, timestamp_ns: int) -> float:
    """The instant of a monotonic time, by the pair of clocks in HELLO; hostile values stay in what a date can hold."""
    if capture.hello is None:
        return 0.0
    now_ns = int(capture.hello["realtime_ns"]) + timestamp_ns - int(capture.hello["monotonic_ns"])
    return min(max(now_ns / 1e9, 0.0), 4102444800.0)  # the year 2100


def thread_stops(capture: Capture) -> tuple[ThreadStop, ...]:
    """In order of time, at most the first 1024. Rows of unknown kinds are skipped."""
    rows = np.concatenate([np.empty(0, STOP), *capture.stops])
    rows = rows[np.isin(rows["moment"], list(MomentNumber)) & np.isin(rows["stopped"], list(Stopped))]
    return tuple(_stop(row) for row in rows[np.argsort(rows["timestamp_ns"], kind="stable")[:_STOPS_MAX]])


def _stop(row: np.void) -> ThreadStop:
    return ThreadStop(
        moment=StopMoment[MomentNumber(row["moment"]).name],
        is_caller=int(row["stopped"]) == Stopped.CALLER,
        duration_ns=int(row["duration_ns"]),
        threads=int(row["n_threads"]),
        pid=int(row["pid"]),
    )


SITES_MAX = 100


def peak_of(capture: Capture, keys: KeyStacks, namer: SiteNamer, is_sampled: bool) -> Peak | None:
    """None where the last snapshot holds most, or where the counters include other processes than the chosen ones.

    A key that covers several stacks counts for the first of them.
    """
    marks, recorded = capture.high_water, capture.session.findings
    at = marks.at
    if at is None or capture.only_pids is not None:
        return None
    index, is_known = keys.find(at.rows)
    held = np.bincount(
        keys.stack[index[is_known]], at.rows["space"][is_known].astype(np.float64), keys.n_stacks
    )
    space = np.rint(held).astype(np.int64)
    holding = np.flatnonzero(held > 0)
    largest = holding[np.argsort(-space[holding], kind="stable")[:SITES_MAX]]
    begin_ns = int(capture.hello["monotonic_ns"]) if capture.hello is not None else at.timestamp_ns
    sites = _sites(largest, space[largest], None, namer)
    # A finished recording keeps bound and level in its SESSION: it has the last STATUS only.
    bound = recorded.peak_bound if marks.bound is None else marks.bound
    is_counted = bound is None and not is_sampled and not capture.session.tracing.sample_bytes
    level = max(marks.level, recorded.highest_level, marks.space) if is_counted else None
    return Peak(max(0, at.timestamp_ns - begin_ns), marks.space, level, sites, bound)


def churn_sites(sums: StackSums, namer: SiteNamer) -> tuple[PastSite, ...]:
    """By number of blocks given back; () where allocations are not counted. sums: of all live blocks."""
    objects = sums.alloc_objects - sums.inuse_objects
    space = sums.alloc_space - sums.inuse_space
    temporary = np.flatnonzero((sums.alloc_objects >= 0) & (objects > 0))
    most = temporary[np.argsort(-objects[temporary], kind="stable")[:SITES_MAX]]
    return _sites(most, np.maximum(space[most], 0), objects[most], namer)


def _sites(
    stacks: NDArray[np.int64], space: NDArray[np.int64], objects: NDArray[np.int64] | None, namer: SiteNamer
) -> tuple[PastSite, ...]:
    namer.resolve(stacks)
    traces = namer.table.traces[namer.table.first_trace[stacks]]
    calls = zip(traces["function"].tolist(), traces["end"].tolist(), namer.named(stacks), strict=True)
    counts: list[int] | list[None] = [None] * len(stacks) if objects is None else objects.tolist()
    found = []
    for held, count, (function, end, (frames, id_)) in zip(space.tolist(), counts, calls, strict=True):
        kind = namer.kind(function, frames, count or 1)
        if kind != "mmap":
            found.append(PastSite(id_, held, count, kind, end_name(end), frames, namer.unit(kind)))
    return tuple(found)
