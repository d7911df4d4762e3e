"""The only pipeline's last part: survivors → names → Profile, with what is missing and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.growth_by_stack import SessionGrowth, session_growth, times_of_marks
from memleak_android.host.analysis.leak_sums import leaks_in_all
from memleak_android.host.analysis.memory_use import read_memory
from memleak_android.host.analysis.peak_and_churn import churn_sites, peak_of
from memleak_android.host.analysis.process_sums import holdings, process_names, process_sums, shares_by_stack
from memleak_android.host.analysis.progress import ProgressCallback, no_progress
from memleak_android.host.analysis.provenance import read_provenance
from memleak_android.host.analysis.sites import (
    SiteNamer,
    largest_sums,
    make_sites,
    stacks_of_blocks,
    sum_by_stack,
    thread_sums,
)
from memleak_android.host.analysis.thread_stops import thread_stops
from memleak_android.host.heap import attribution, omitted_stacks
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.profile import (
    LATE,
    CallSite,
    FpAgreement,
    ProcessSum,
    Profile,
    Target,
    Totals,
    Unwinding,
    Verdict,
)
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.host.wire.blocks import ArchNumber, Lost, Reason
from memleak_android.unwind.trace import TraceEnd

_REMARKS_SHOWN_MAX = 20

# Losses that make sums wrong. All others only cost stacks, and what is live without one is counted as unattributed.
ACCOUNTING_LOSSES = (
    Lost.TABLE_FULL,
    Lost.THREADS_FULL,
    Lost.PENDING_FULL,
    Lost.MISSED_ENTRY,
    Lost.MISSED_RETURN,
    Lost.MISSED_FREE,
    Lost.REGIONS,
    Lost.RECURSION,
    Lost.HANDLES,
)


@dataclass(frozen=True, slots=True)
class View:
    """What of the survivors a profile shows. Ages and sizes limit its sites, never its totals."""

    older_ns: int = 0
    min_size: int = 0
    max_size: int = 2**64 - 1
    show_allocs: bool = False
    max_lost: float = 0.001  # share
    warmup_ns: int | None = 0  # growth is judged from then on; None = not at all
    cooldown_ns: int = 0  # … and until so long before the end
    most_sites: int = 0  # 0 = all; else about so many, those that hold most, hold most blocks, grow fastest


def make_profile(
    capture: Capture,
    survivors: Survivors,
    symbolizer: Symbolizer,
    view: View,
    missing: Sequence[str] = (),
    tell: ProgressCallback = no_progress,
) -> Profile:
    """missing: what the reader of the capture knows to be missing, as sentences; each makes the result incomplete.

    A session says what went wrong while it ran under "missing" of its SESSION block.
    """
    snapshot = survivors.snapshot
    shown = attribution.select(
        snapshot.live, snapshot.timestamp_ns, view.older_ns, view.min_size, view.max_size
    )
    tell("summing up", 0.0)
    sums = sum_by_stack(survivors, shown)
    namer = SiteNamer(survivors, symbolizer, capture.session.tracing.pair_functions)
    growth = _growth(capture, survivors, view)
    is_end = view.warmup_ns is not None
    everything = sums if shown.all() else sum_by_stack(survivors, np.ones(len(shown), bool))
    totals = _totals(capture, survivors)
    threads, leaks = thread_sums(survivors), leaks_in_all(survivors)
    # last: a million sites take as much memory as ten million blocks, and columns over the blocks are gone by now
    if view.most_sites:
        sums = largest_sums(sums, growth.by_stack, view.most_sites)
    of_shown = holdings(survivors, stacks_of_blocks(survivors), shown)
    shares = {} if of_shown is None else shares_by_stack(of_shown)
    sites = make_sites(survivors, sums, namer, shown, view.show_allocs, growth.by_stack, tell, shares)
    modules = namer.modules()
    lacks = (
        *missing,
        *capture.session.findings.missing,
        *malformed_missing(capture),
        *_missing(capture, survivors, totals, view.max_lost),
    )
    missing = tuple(dict.fromkeys(lacks))
    return Profile(
        target=_target(capture),
        duration_ns=_duration_ns(capture, survivors),
        verdict=Verdict.INCOMPLETE if missing else Verdict.OK,
        totals=totals,
        unwinding=_unwinding(sites, survivors.fp_agreement),
        sites=sites,
        modules=modules,
        wall_clock_s=_wall_clock_s(capture, snapshot.timestamp_ns or capture.last_timestamp_ns),
        notes=(*missing, *_notes(capture, view, totals), *symbolizer.notes),
        threads=threads,
        processes=() if of_shown is None else _processes(capture, survivors, namer),
        growth=growth.span,
        stops=thread_stops(capture),
        memory=read_memory(capture.session.findings.memory, _begin_ns(capture)) if is_end else (),
        peak=peak_of(capture, survivors, namer) if is_end else None,
        churn=churn_sites(survivors, everything, namer) if is_end else (),
        leaks=leaks,
    )


def _processes(capture: Capture, survivors: Survivors, namer: SiteNamer) -> tuple[ProcessSum, ...]:
    stacks = stacks_of_blocks(survivors)
    held = holdings(survivors, stacks, ~attribution.is_region(survivors.snapshot.live))
    return () if held is None else process_sums(survivors, held, process_names(capture), namer.ids_of)


def _begin_ns(capture: Capture) -> int:
    return int(capture.hello["monotonic_ns"]) if capture.hello is not None else capture.last_timestamp_ns


def _growth(capture: Capture, survivors: Survivors, view: View) -> SessionGrowth:
    if view.warmup_ns is None:
        return SessionGrowth(None, {})
    return session_growth(capture, survivors, view.warmup_ns, view.cooldown_ns)


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


def _totals(capture: Capture, survivors: Survivors) -> Totals:
    live = survivors.snapshot.live
    blocks = ~attribution.is_region(live)
    unattributed = blocks & (stacks_of_blocks(survivors) == attribution.UNATTRIBUTED)
    status = capture.status
    allocated = _allocated(capture, survivors)
    inuse = _sum(survivors, blocks)
    orphaned = _sum(survivors, unattributed)
    unasked = _sum(
        survivors, omitted_stacks.left_out(capture.session.tracing, survivors.snapshot, unattributed)
    )
    return Totals(
        inuse_space=inuse[0],
        inuse_objects=inuse[1],
        alloc_space=allocated[0] if allocated else None,
        alloc_objects=allocated[1] if allocated else None,
        unattributed_space=orphaned[0],
        unattributed_objects=orphaned[1],
        lost=lost_by_cause(capture),
        untracked_frees=int(status["untracked_frees"]) if status is not None else 0,
        heap_bytes_of_target=_heap_bytes(capture),
        tracer_cpu_s=int(status["tracer_cpu_ns"]) / 1e9 if status is not None else None,
        unasked_space=unasked[0],
        unasked_objects=unasked[1],
    )


def _allocated(capture: Capture, survivors: Survivors) -> tuple[int, int] | None:
    """Bytes and blocks over the whole time; of some of the processes that were looked at by their keys' counters.

    None = not known: a shim that samples counts its samples only, whatever size each of them stands for.
    """
    if capture.status is None or capture.session.tracing.sample_bytes:
        return None
    if capture.only_pids is None:
        return int(capture.status["alloc_bytes"]), int(capture.status["alloc_objects"])
    keys = survivors.snapshot.keys
    return sum(keys["alloc_bytes"].tolist()), sum(keys["alloc_objects"].tolist())


def _heap_bytes(capture: Capture) -> int | None:
    """None = not told; the agent tells it of the process that it was given."""
    if capture.status is None or capture.only_pids is not None:
        return None
    return int(capture.status["heap_bytes_of_target"]) or None


def _sum(survivors: Survivors, chosen: NDArray[np.bool_]) -> tuple[int, int]:
    """Bytes and blocks, estimated where the tracer sampled."""
    live = survivors.snapshot.live
    if not live["sample_bytes"].any():
        size = live["size"][chosen]
        high, low = (size >> np.uint64(32)).sum(), (size & np.uint64(0xFFFFFFFF)).sum()
        return (int(high) << 32) + int(low), len(size)
    space = objects = 0.0
    for part in attribution.chunks(len(live)):
        rows = live[part][chosen[part]]
        weight = attribution.sampling_weights(rows)
        space += float((rows["size"] * weight).sum())
        objects += float(weight.sum())
    return round(space), round(objects)


def lost_by_cause(capture: Capture) -> dict[str, int]:
    if capture.status is None:
        return {}
    names = {cause.value: cause.name.lower() for cause in Lost}
    counts = capture.status["lost"].tolist()
    return {names.get(i, f"cause_{i}"): count for i, count in enumerate(counts) if count}


def _lost_shares(capture: Capture, totals: Totals) -> Iterator[tuple[float, str]]:
    """What is lost as parts of a whole: calls that the accounting missed, and held blocks without a stack."""
    calls = 0
    if capture.status is not None:
        names = ("alloc_objects", "free_objects", "untracked_frees")
        calls = sum(int(capture.status[name]) for name in names)
    expected = {Lost.MISSED_FREE} if capture.session.tracing.expects_missing_frees else set()
    missed = sum(
        totals.lost.get(cause.name.lower(), 0) for cause in ACCOUNTING_LOSSES if cause not in expected
    )
    yield missed / max(1, calls + missed), "of the calls were missed: sums can be wrong"
    orphans = totals.unattributed_objects - totals.unasked_objects
    yield orphans / max(1, totals.inuse_objects), "of the blocks held have no stack"


def malformed_missing(capture: Capture) -> list[str]:
    """The blocks that were passed over."""
    if not capture.malformed:
        return []
    n = len(capture.malformed)
    return [f"{n:,} block{'s' * (n != 1)} could not be used ({capture.malformed[0].message})"]


def _missing(capture: Capture, survivors: Survivors, totals: Totals, max_lost: float) -> list[str]:
    found = []
    if capture.snapshot is None:
        found.append("no snapshot of the live table: what is held is not known")
    elif not survivors.snapshot.is_whole:
        found.append("the only snapshot of the live table is cut: more is held than shown")
    if capture.end is None:
        found.append(f"the session did not end in order{_age_of_snapshot(capture)}")
    if table_full := totals.lost.get("table_full", 0):
        found.append(
            f"the live table was full: {table_full} blocks are missing in all sums (raise --max-live)"
        )
    if programs := totals.lost.get("programs", 0):
        found.append(f"{programs} program{'s' * (programs > 1)} of the target could not be measured")
    for share, what in _lost_shares(capture, totals):
        if share > max_lost:
            found.append(f"{share:.2%} {what} (--max-lost is {max_lost:.2%})")
    return found


def _age_of_snapshot(capture: Capture) -> str:
    if capture.snapshot is None:
        return ""
    age_ns = max(0, capture.last_timestamp_ns - capture.snapshot.timestamp_ns)
    return f": what is held is that of the last snapshot, {age_ns / 1e9:.1f} s before its last sign of life"


def _notes(capture: Capture, view: View, totals: Totals) -> list[str]:
    session = capture.session
    notes = list(session.findings.left_out)
    notes += omitted_stacks.notes(session.tracing, totals.unasked_space, totals.unasked_objects)
    marked, times = times_of_marks(capture)
    if marked and not session.findings.has_scenario and view.warmup_ns is not None:
        notes.append(
            f"growth is judged from mark to mark: {marked} was set {len(times)} times, each is a run"
        )
    if session.target.is_attached:
        notes.append("blocks allocated before the tracer attached are invisible")
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
    late = sum(site.frames[-1].method == LATE for site in sites if site.frames)  # what is late is outermost
    return Unwinding(len(sites), complete, len(sites) - complete, ends, fp_agreement, late)


def _duration_ns(capture: Capture, survivors: Survivors) -> int:
    return max(0, (survivors.snapshot.timestamp_ns or capture.last_timestamp_ns) - _begin_ns(capture))


def _wall_clock_s(capture: Capture, timestamp_ns: int) -> float:
    """The instant of a monotonic time, by the pair of clocks in HELLO; hostile values stay in what a date can hold."""
    if capture.hello is None:
        return 0.0
    now_ns = int(capture.hello["realtime_ns"]) + timestamp_ns - int(capture.hello["monotonic_ns"])
    return min(max(now_ns / 1e9, 0.0), 4102444800.0)  # the year 2100
