"""Counters and sums → the totals of a profile, and the sentences about what is missing from it."""

from collections.abc import Iterator

from memleak_android.host.analysis.block_sums import BlockSums
from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.profile.losses import ACCOUNTING_LOSSES
from memleak_android.host.profile.profile import Totals
from memleak_android.host.wire.blocks import Lost


def make_totals(capture: Capture, snapshot: Snapshot, sums: BlockSums) -> Totals:
    status = capture.status
    allocated = _allocated(capture, snapshot)
    return Totals(
        inuse_space=sums.inuse[0],
        inuse_objects=sums.inuse[1],
        alloc_space=allocated[0] if allocated else None,
        alloc_objects=allocated[1] if allocated else None,
        unattributed_space=sums.unattributed[0],
        unattributed_objects=sums.unattributed[1],
        lost=lost_by_cause(capture),
        untracked_frees=int(status["untracked_frees"]) if status is not None else 0,
        heap_bytes_of_target=_heap_bytes(capture),
        tracer_cpu_s=int(status["tracer_cpu_ns"]) / 1e9 if status is not None else None,
        unasked_space=sums.omitted[0],
        unasked_objects=sums.omitted[1],
    )


def _allocated(capture: Capture, snapshot: Snapshot) -> tuple[int, int] | None:
    """Bytes and blocks over the whole session; for chosen processes from the counters of their keys.

    None = unknown: a shim that samples counts samples only.
    """
    if capture.status is None or capture.session.tracing.sample_bytes:
        return None
    if capture.only_pids is None:
        return int(capture.status["alloc_bytes"]), int(capture.status["alloc_objects"])
    return sum(snapshot.keys["alloc_bytes"].tolist()), sum(snapshot.keys["alloc_objects"].tolist())


def _heap_bytes(capture: Capture) -> int | None:
    """None = unknown; the agent reports it for the process that it was started for."""
    if capture.status is None or capture.only_pids is not None:
        return None
    return int(capture.status["heap_bytes_of_target"]) or None


def lost_by_cause(capture: Capture) -> dict[str, int]:
    if capture.status is None:
        return {}
    names = {cause.value: cause.name.lower() for cause in Lost}
    counts = capture.status["lost"].tolist()
    return {names.get(i, f"cause_{i}"): count for i, count in enumerate(counts) if count}


def malformed_missing(capture: Capture) -> list[str]:
    """About the blocks that were skipped."""
    if not capture.malformed:
        return []
    n = len(capture.malformed)
    return [f"{n:,} block{'s' * (n != 1)} could not be used ({capture.malformed[0].message})"]


def missing_sentences(capture: Capture, totals: Totals, max_lost: float) -> list[str]:
    """Reasons why the result is incomplete. max_lost: the share of losses that is tolerated."""
    found, snapshot = [], capture.snapshot
    if snapshot is None:
        found.append("no snapshot of the live table: what is held is not known")
    elif not snapshot.is_whole:
        found.append("the only snapshot of the live table is cut: more is held than shown")
    if capture.end is None:
        found.append(f"the session did not end in order{_age_of(snapshot, capture.last_timestamp_ns)}")
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


def _age_of(snapshot: Snapshot | None, last_timestamp_ns: int) -> str:
    if snapshot is None:
        return ""
    age_ns = max(0, last_timestamp_ns - snapshot.timestamp_ns)
    return f": what is held is that of the last snapshot, {age_ns / 1e9:.1f} s before its last sign of life"


def _lost_shares(capture: Capture, totals: Totals) -> Iterator[tuple[float, str]]:
    """Losses as shares: calls that the accounting missed, and held blocks without a stack."""
    calls = 0
    if capture.status is not None:
        names = ("alloc_objects", "free_objects", "untracked_frees")
        calls = sum(int(capture.status[name]) for name in names)
    expected = {Lost.MISSED_FREE.name.lower()} if capture.session.tracing.expects_missing_frees else set()
    missed = sum(totals.lost.get(cause, 0) for cause in ACCOUNTING_LOSSES - expected)
    yield missed / max(1, calls + missed), "of the calls were missed: sums can be wrong"
    orphans = totals.unattributed_objects - totals.unasked_objects
    yield orphans / max(1, totals.inuse_objects), "of the blocks held have no stack"
