"""Counters and sums → the totals of a profile."""

from memleak_android.host.analysis.block_sums import BlockSums
from memleak_android.host.heap.capture import Capture, Snapshot
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
