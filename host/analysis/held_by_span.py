"""What is held of spans of time: a block is of the span in which its process allocated it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memleak_android.host.analysis.block_sums import Numbers, held_blocks
from memleak_android.host.analysis.sites import SiteNamer
from memleak_android.host.heap.attribution import UNATTRIBUTED
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.host.wire.blocks import FIRST_REGION_FUNCTION
from memleak_android.host.wire.packed import distinct

_TICK_NS = 4096  # of the live table: a block's time may be so much too early


@dataclass(frozen=True, slots=True)
class Span:
    """From `from_ns` (CLOCK_MONOTONIC) to the next span of the process."""

    pid: int
    from_ns: int


HeldBySpan = Mapping[str, Mapping[int, tuple[int, int]]]
"""Site's id, "" = blocks without a stack → index of the span → bytes and blocks."""


def held_by_span(
    capture: Capture, survivors: Survivors, symbolizer: Symbolizer, spans: Sequence[Span]
) -> HeldBySpan:
    """spans: by process and time. What was allocated before the first of its process is left out."""
    held = held_blocks(survivors)
    held = held.where(held.rows["function"] < FIRST_REGION_FUNCTION)
    span_of = np.full(len(held), -1)
    for pid in {span.pid for span in spans}:
        indexes = np.array([index for index, span in enumerate(spans) if span.pid == pid])
        begins = np.array([spans[index].from_ns - _TICK_NS for index in indexes.tolist()])
        own = held.rows["pid"] == pid
        order = np.searchsorted(begins, held.rows["timestamp_ns"][own].astype(np.int64), "right") - 1
        span_of[own] = np.where(order >= 0, indexes[order], -1)
    held, span_of = held.where(span_of >= 0), span_of[span_of >= 0]
    first, index = distinct(held.stack, span_of)
    groups = np.stack([held.stack[first], span_of[first]])
    sums = np.zeros((2, len(first)), np.int64)
    np.add.at(sums[0], index, held.rows["size"].astype(np.int64))
    np.add.at(sums[1], index, 1)
    return _by_site(capture, survivors, symbolizer, groups, sums)


def _by_site(
    capture: Capture,
    survivors: Survivors,
    symbolizer: Symbolizer,
    groups: Numbers,
    sums: Numbers,
) -> HeldBySpan:
    namer = SiteNamer(survivors.stacks, survivors.files, symbolizer, capture.session.tracing)
    stacks = np.unique(groups[0][groups[0] != UNATTRIBUTED])
    ids = {UNATTRIBUTED: "", **dict(zip(stacks.tolist(), namer.ids_of(stacks), strict=True))}
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for stack, span, space, objects in zip(*groups.tolist(), *sums.tolist(), strict=True):
        spans = found.setdefault(ids[stack], {})
        before = spans.get(span, (0, 0))
        spans[span] = before[0] + space, before[1] + objects
    return found
