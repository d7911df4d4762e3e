"""The only pipeline's last part: survivors → names → Profile, with what is missing and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host import heap
from memleak_android.host.capture import Capture
from memleak_android.host.profile import CallSite, Profile, Target, Totals, Unwinding, Verdict
from memleak_android.host.sites import SiteNamer, make_sites, stacks_of_blocks, sum_by_stack
from memleak_android.host.survivors import Survivors
from memleak_android.host.symbols import Symbolizer
from memleak_android.host.wire import ArchNumber, Lost, Reason
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
)


@dataclass(frozen=True, slots=True)
class LeakLimit:
    """--fail-on-leak: exceeded by more bytes, or by more blocks."""

    space: int
    objects: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What of the survivors a profile shows. Ages and sizes limit its sites, never its totals."""

    older_ns: int = 0
    min_size: int = 0
    max_size: int = 2**64 - 1
    show_allocs: bool = False
    limit: LeakLimit | None = None
    max_lost: float = 0.001  # share


def make_profile(
    capture: Capture, survivors: Survivors, symbolizer: Symbolizer, view: View, missing: Sequence[str] = ()
) -> Profile:
    """missing: what the reader of the capture knows to be missing, as sentences; each makes the result incomplete.

    A session says what went wrong while it ran under "missing" of its SESSION block.
    """
    snapshot = survivors.snapshot
    shown = heap.select(snapshot.live, snapshot.timestamp_ns, view.older_ns, view.min_size, view.max_size)
    sums = sum_by_stack(survivors, shown)
    namer = SiteNamer(survivors, symbolizer)
    sites = make_sites(survivors, sums, namer, shown, view.show_allocs)
    totals = _totals(capture, survivors)
    lacks = (
        *missing,
        *told_missing(capture),
        *malformed_missing(capture),
        *_missing(capture, survivors, totals, view.max_lost),
    )
    missing = tuple(dict.fromkeys(lacks))
    return Profile(
        target=_target(capture),
        duration_ns=_duration_ns(capture, survivors),
        verdict=_verdict(sites, totals, view.limit, missing),
        totals=totals,
        unwinding=_unwinding(sites),
        sites=sites,
        modules=namer.modules(),
        wall_clock_s=_wall_clock_s(capture, snapshot.timestamp_ns or capture.last_timestamp_ns),
        notes=(*missing, *_notes(capture, view), *symbolizer.notes),
    )


def exceeds(sites: Sequence[CallSite], totals: Totals, limit: LeakLimit) -> bool:
    """By what the program holds: sites of the runtime and of the region ledger are no leaks."""
    held = [site for site in sites if site.kind not in ("runtime", "mmap")]
    space = sum(site.inuse_space for site in held) + totals.unattributed_space
    objects = sum(site.inuse_objects for site in held) + totals.unattributed_objects
    return space > limit.space or (limit.objects is not None and objects > limit.objects)


def _verdict(
    sites: Sequence[CallSite], totals: Totals, limit: LeakLimit | None, missing: Sequence[str]
) -> Verdict:
    if limit is not None and exceeds(sites, totals, limit):
        return Verdict.LEAKS
    return Verdict.INCOMPLETE if missing else Verdict.OK


def _target(capture: Capture) -> Target:
    session, hello = capture.session, capture.hello
    number = int(hello["arch"]) if hello is not None else 0
    status = int(capture.end["status"]) if capture.end is not None else -1
    ended = capture.end is not None and int(capture.end["reason"]) == Reason.TARGET_EXIT
    return Target(
        arch=ArchNumber(number).name.lower() if number in set(ArchNumber) else "unknown",
        pid=target_pid(capture),
        command=str(session.get("command", "")),
        tracer=str(session.get("tracer", "unknown")),
        unwind=str(session.get("unwind", "cfi")),
        sample_bytes=_number(session.get("sample_bytes")),
        exit_status=status if ended and status >= 0 else None,
        package=str(session.get("package") or "") or None,
        serial=str(session.get("serial") or "") or None,
    )


def target_pid(capture: Capture) -> int:
    """0 = not known. A command's is known from its first event only."""
    of_hello = int(capture.hello["pid"]) if capture.hello is not None else 0
    started = (int(rows["pid"][0]) for rows in capture.processes if len(rows))
    return _number(capture.session.get("pid")) or of_hello or next(started, 0)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _totals(capture: Capture, survivors: Survivors) -> Totals:
    live = survivors.snapshot.live
    blocks = ~heap.is_region(live)
    unattributed = blocks & (stacks_of_blocks(survivors) == heap.NONE)
    status = capture.status
    allocated = _allocated(capture, survivors)
    inuse = _sum(survivors, blocks)
    orphaned = _sum(survivors, unattributed)
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
    )


def _allocated(capture: Capture, survivors: Survivors) -> tuple[int, int] | None:
    """Bytes and blocks over the whole time; of some of the processes that were looked at by their keys' counters."""
    if capture.status is None:
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
    live = survivors.snapshot.live[chosen]
    if not live["sample_bytes"].any():
        size = live["size"]
        return (int((size >> np.uint64(32)).sum()) << 32) + int((size & np.uint64(0xFFFFFFFF)).sum()), len(
            live
        )
    weight = heap.weights(live)
    return round(float((live["size"] * weight).sum())), round(float(weight.sum()))


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
        calls = int(capture.status["alloc_objects"]) + int(capture.status["free_objects"])
    missed = sum(totals.lost.get(cause.name.lower(), 0) for cause in ACCOUNTING_LOSSES)
    yield missed / max(1, calls + missed), "of the calls were missed: sums can be wrong"
    yield totals.unattributed_objects / max(1, totals.inuse_objects), "of the blocks held have no stack"


def told_missing(capture: Capture) -> list[str]:
    """What the session itself says it lacks."""
    told = capture.session.get("missing")
    return [str(reason) for reason in told] if isinstance(told, list) else []


def malformed_missing(capture: Capture) -> list[str]:
    """The blocks that were passed over."""
    if not capture.malformed:
        return []
    return [f"{len(capture.malformed)} blocks could not be used ({capture.malformed[0].message})"]


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


def _notes(capture: Capture, view: View) -> list[str]:
    notes = []
    if capture.session.get("attached"):
        notes.append("blocks allocated before the tracer attached are invisible")
    if view.min_size or view.max_size < 2**64 - 1:
        notes.append("sites are limited by size (-z, -Z); totals are not")
    return notes + list(dict.fromkeys(capture.remarks))[:_REMARKS_SHOWN_MAX]


def _unwinding(sites: Sequence[CallSite]) -> Unwinding:
    ends: dict[str, int] = {}
    for site in sites:
        ends[site.end] = ends.get(site.end, 0) + 1
    complete = ends.get(TraceEnd.ROOT.name, 0)
    return Unwinding(len(sites), complete, len(sites) - complete, ends)


def _duration_ns(capture: Capture, survivors: Survivors) -> int:
    begin = int(capture.hello["monotonic_ns"]) if capture.hello is not None else capture.last_timestamp_ns
    return max(0, (survivors.snapshot.timestamp_ns or capture.last_timestamp_ns) - begin)


def _wall_clock_s(capture: Capture, timestamp_ns: int) -> float:
    """The instant of a monotonic time, by the pair of clocks in HELLO; hostile values stay in what a date can hold."""
    if capture.hello is None:
        return 0.0
    now_ns = int(capture.hello["realtime_ns"]) + timestamp_ns - int(capture.hello["monotonic_ns"])
    return min(max(now_ns / 1e9, 0.0), 4102444800.0)  # the year 2100
