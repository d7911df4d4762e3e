"""Blocks without a stack because an option omits it: `--adaptive`, `--evidence-after`, `--all`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap import attribution
from memleak_android.host.wire.blocks import Rows
from memleak_android.host.wire.session import SessionTracing

# --adaptive sends the stack of every key that holds more than this share of the outstanding bytes.
SMALL_SHARE = 0.01
# --all omits the stack of a key that holds a single block below this size (device/bpf/evidence.bpf.h).
SINGLE_BLOCK_BYTES = 4096


def is_omitted(tracing: SessionTracing, live: Rows, now_ns: int) -> NDArray[np.bool_]:
    """For each live block: if it has no stack, that is because none was requested.

    A block that lacks its stack for another reason (it is old, its key holds much, it has no key) is a loss.
    """
    chosen = np.zeros(len(live), bool)
    groups = attribution.key_groups(live) if tracing.is_adaptive or tracing.is_every_process else chosen
    if tracing.is_adaptive:
        held = np.bincount(groups, live["size"].astype(np.float64))
        chosen |= held[groups] < SMALL_SHARE * held.sum()
    if tracing.evidence_after_ns:
        chosen |= live["timestamp_ns"].astype(np.int64) > now_ns - tracing.evidence_after_ns
    if tracing.is_every_process:
        chosen |= (np.bincount(groups)[groups] == 1) & (live["size"] < SINGLE_BLOCK_BYTES)
    return np.asarray(chosen & (live["key"] != 0))


def notes(tracing: SessionTracing, space: int, objects: int) -> list[str]:
    """The report's note about bytes and blocks whose stacks were omitted."""
    reasons = []
    if tracing.is_adaptive:
        reasons.append(
            f"their stacks hold less than {SMALL_SHARE:.0%} each of what is outstanding (--adaptive)"
        )
    if tracing.evidence_after_ns:
        reasons.append(f"they are younger than {tracing.evidence_after_ns / 1e9:g} s (--evidence-after)")
    if tracing.is_every_process:
        reasons.append(
            f"each is the only block of its stack and smaller than {SINGLE_BLOCK_BYTES:,} bytes (name its process by --pid for them)"
        )
    why = " or ".join(reasons)
    return [f"{objects:,} blocks of {space:,} bytes have no stack because {why}"] if objects else []
