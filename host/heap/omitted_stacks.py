"""Blocks without a stack because the session was told to do without: `--adaptive`, `--evidence-after`, `--all`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Snapshot
from memleak_android.host.wire.blocks import Rows
from memleak_android.host.wire.session import SessionTracing

# --adaptive promises the stacks of all that holds more than this share of what is outstanding.
SMALL_SHARE = 0.01
# --all asks for no stack of keys that hold one block below this size (device/bpf/evidence.bpf.h).
LARGE_OF_EVERYBODY = 4096


def left_out(
    tracing: SessionTracing, snapshot: Snapshot, unattributed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Those of the unattributed blocks whose stack was not asked for; by block of the snapshot.

    session: as the recording tells. What has no stack for another reason (an old block's, a key that holds much, a
    block without a key) is not among them: that is a loss.
    """
    live = snapshot.live
    chosen = np.zeros(len(live), bool)
    if tracing.is_adaptive:
        chosen |= _is_small(live)
    if tracing.evidence_after_ns:
        born_ns = live["timestamp_ns"].astype(np.int64)
        chosen |= born_ns > snapshot.timestamp_ns - tracing.evidence_after_ns
    if tracing.is_every_process:
        chosen |= _is_single(live) & (live["size"] < LARGE_OF_EVERYBODY)
    return np.asarray(chosen & unattributed & (live["key"] != 0))


def notes(tracing: SessionTracing, space: int, objects: int) -> list[str]:
    """What the report says of bytes and blocks that were left out."""
    reasons = []
    if tracing.is_adaptive:
        reasons.append(
            f"their stacks hold less than {SMALL_SHARE:.0%} each of what is outstanding (--adaptive)"
        )
    if tracing.evidence_after_ns:
        reasons.append(f"they are younger than {tracing.evidence_after_ns / 1e9:g} s (--evidence-after)")
    if tracing.is_every_process:
        reasons.append(
            f"each is alone in its place and smaller than {LARGE_OF_EVERYBODY:,} bytes (name its process by --pid for them)"
        )
    why = " or ".join(reasons)
    return [f"{objects:,} blocks of {space:,} bytes have no stack because {why}"] if objects else []


def _is_small(live: Rows) -> NDArray[np.bool_]:
    """For each block: its process holds less than SMALL_SHARE of all by the block's key."""
    groups = attribution.key_groups(live)
    held = np.bincount(groups, live["size"].astype(np.float64)) if len(live) else np.zeros(0)
    return np.asarray(held[groups] < SMALL_SHARE * held.sum())


def _is_single(live: Rows) -> NDArray[np.bool_]:
    """For each block: its process holds no other by the block's key."""
    groups = attribution.key_groups(live)
    return np.asarray(np.bincount(groups)[groups] == 1) if len(live) else np.zeros(0, bool)
