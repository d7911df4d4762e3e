"""From what keys held over time to the growth of stacks, and the answer for the whole session."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.growth_trend import INSTANTS_MIN, Series, judge_growth
from memleak_android.host.analysis.sites import stacks_of_blocks
from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.key_history import INTERVAL_MIN_NS, KeySnapshot, held_by_key, key_identity
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.profile import Growth, GrowthSpan
from memleak_android.host.wire.blocks import HELD_ROW, Reason, Rows

STACKS_MAX = 5_000  # judged: those that rose most
SUM_MAX = 2.0**126  # bytes²; a hostile recording's variances shall not end in infinities

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SessionGrowth:
    """by_stack: growth by number of the stack; empty where the instants are too few."""

    span: GrowthSpan | None
    by_stack: dict[int, Growth]


@dataclass(frozen=True, slots=True)
class _Shares:
    """How each key is divided among stacks: `share` of `key` (index into keys) is `stack`'s.

    A key that covers several stacks is divided as its blocks are in the last snapshot; nothing tells how it was before.
    One that holds nothing any more is the first of its stacks', where that is known: a stack may have had another key
    before the rules of its code were known. n_live: so many of key, stack and share are of the last snapshot.
    """

    keys: NDArray[np.uint64]  # identities, sorted
    key: NDArray[np.int64]
    stack: NDArray[np.int64]
    share: Floats
    n_stacks: int
    n_live: int

    def by_stack(self, rows: Rows, column: str) -> Floats:
        """Sums of a column of HELD_ROW over the keys of each stack."""
        identities = key_identity(rows)
        place = np.minimum(np.searchsorted(self.keys, identities), max(len(self.keys) - 1, 0))
        known = self.keys[place] == identities if len(self.keys) else np.zeros(len(rows), bool)
        values = np.clip(np.nan_to_num(rows[column].astype(np.float64)), 0, SUM_MAX)
        held = np.bincount(place[known], values[known], len(self.keys))
        return np.asarray(np.bincount(self.stack, held[self.key] * self.share, self.n_stacks), np.float64)


@dataclass(frozen=True, slots=True)
class _Instants:
    """What growth is judged by. seconds: since the session's start; by runs of a scenario, as if all took run_s."""

    held: list[KeySnapshot]
    seconds: Floats
    run_s: float = 0.0


def session_growth(
    capture: Capture, survivors: Survivors, warmup_ns: int = 0, cooldown_ns: int = 0
) -> SessionGrowth:
    """Over the snapshots after the warm-up, until cooldown_ns before the end; the one at the target's own exit is left
    out where others suffice.

    Of a scenario over those after each of its runs.
    """
    begin_ns = int(capture.hello["monotonic_ns"]) if capture.hello is not None else 0
    until_ns = survivors.snapshot.timestamp_ns - cooldown_ns
    earlier = [
        one for one in capture.key_history.instants if begin_ns + warmup_ns <= one.timestamp_ns <= until_ns
    ]
    if not capture.key_history.instants:
        return SessionGrowth(None, {})
    if ends_ns := _ends_of_runs(capture, begin_ns):
        instants = _by_runs(earlier, ends_ns, begin_ns)
    else:
        instants = _by_time(earlier, capture, survivors, begin_ns, takes_end=not cooldown_ns)
    if len(instants.held) < INSTANTS_MIN:
        return SessionGrowth(GrowthSpan(0, 0, len(instants.held), INSTANTS_MIN, instants.run_s), {})
    times_ns = [max(0, one.timestamp_ns - begin_ns) for one in instants.held]
    span = GrowthSpan(times_ns[0], times_ns[-1], len(times_ns), INSTANTS_MIN, instants.run_s)
    chosen, series = _series(instants, _shares(survivors), survivors)
    growth = (replace(one, run_s=instants.run_s) for one in judge_growth(series))
    return SessionGrowth(span, dict(zip(chosen.tolist(), growth, strict=True)))


def _by_time(
    earlier: list[KeySnapshot], capture: Capture, survivors: Survivors, begin_ns: int, takes_end: bool
) -> _Instants:
    snapshot = survivors.snapshot
    held = [one for one in earlier if one.timestamp_ns <= snapshot.timestamp_ns - INTERVAL_MIN_NS]
    if takes_end and (not _ended_by_itself(capture) or len(held) < INSTANTS_MIN):
        enough = len(held) + 1 >= INSTANTS_MIN
        last = held_by_key(snapshot.live) if enough else np.empty(0, HELD_ROW)
        held.append(KeySnapshot(snapshot.timestamp_ns, last))
    return _Instants(held, np.array([one.timestamp_ns - begin_ns for one in held], np.float64) / 1e9)


def _by_runs(earlier: list[KeySnapshot], ends_ns: list[int], begin_ns: int) -> _Instants:
    """A run's number tells its place, however long it took. A snapshot that another has just gone before is that one."""
    found: dict[int, KeySnapshot] = {}
    for one in earlier:
        number = bisect_left(ends_ns, one.timestamp_ns)
        if number < len(ends_ns) and ends_ns[number] - one.timestamp_ns < INTERVAL_MIN_NS:
            found[number] = one
    held = list(found.values())
    run_s = (ends_ns[-1] - ends_ns[0]) / 1e9 / max(len(ends_ns) - 1, 1)
    places = np.array(list(found), np.float64)
    return _Instants(held, (ends_ns[0] - begin_ns) / 1e9 + places * run_s, run_s)


def _ends_of_runs(capture: Capture, begin_ns: int) -> list[int]:
    """When the snapshots after the runs of --scenario, or else at the marks, were taken, as the session tells; [] = by time."""
    of_scenario = capture.session.findings.run_ends_ns
    known = times_of_marks(capture)[1] if of_scenario is None else list(of_scenario)
    is_sane = len(known) > 1 and known == sorted(set(known)) and known[0] >= begin_ns and known[-1] < 2**63
    return known if is_sane and known[-1] - known[0] >= len(known) * INTERVAL_MIN_NS else []


def times_of_marks(capture: Capture) -> tuple[str, list[int]]:
    """The name that was marked most often, where that is often enough to judge by, and when."""
    times: dict[str, list[int]] = {}
    for name, time_ns in capture.session.findings.marks:
        times.setdefault(name, []).append(time_ns)
    name = max(times, key=lambda one: len(times[one]), default="")
    return (name, times[name]) if len(times.get(name, ())) >= INSTANTS_MIN else ("", [])


def _ended_by_itself(capture: Capture) -> bool:
    return capture.end is not None and int(capture.end["reason"]) == Reason.TARGET_EXIT


def _shares(survivors: Survivors) -> _Shares:
    live, stack = survivors.snapshot.live, stacks_of_blocks(survivors)
    identities = key_identity(live)
    keys, key = np.unique(identities, return_inverse=True)
    size = np.maximum(live["size"].astype(np.float64), 1.0) * attribution.sampling_weights(live)
    whole = np.bincount(key, size, len(keys))
    has_stack = stack != attribution.UNATTRIBUTED
    n_stacks = len(survivors.stacks.first_trace)
    pair = key[has_stack].astype(np.int64) * max(n_stacks, 1) + stack[has_stack]
    pairs, number = np.unique(pair, return_inverse=True)
    of_key = pairs // max(n_stacks, 1)
    part = np.bincount(number, size[has_stack], len(pairs)) / whole[of_key]
    return _with_past(_Shares(keys, of_key, pairs % max(n_stacks, 1), part, n_stacks, len(pairs)), survivors)


def _with_past(shares: _Shares, survivors: Survivors) -> _Shares:
    table = survivors.stacks
    if not len(table):
        return shares
    known, first = np.unique(key_identity(table.traces), return_index=True)
    is_past = ~np.isin(known, shares.keys)
    keys, stacks = np.concatenate([shares.keys, known[is_past]]), table.stack_of_trace[first[is_past]]
    order = np.argsort(keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.arange(len(keys))
    key = place[np.concatenate([shares.key, np.arange(len(shares.keys), len(keys))])]
    share = np.concatenate([shares.share, np.ones(len(stacks))])
    return replace(
        shares, keys=keys[order], key=key, stack=np.concatenate([shares.stack, stacks]), share=share
    )


def _series(instants: _Instants, shares: _Shares, survivors: Survivors) -> tuple[NDArray[np.int64], Series]:
    held = instants.held
    first = shares.by_stack(held[0].rows, "space")
    last = shares.by_stack(held[-1].rows, "space")
    holding = np.unique(shares.stack[: shares.n_live])
    chosen = holding[np.argsort(first[holding] - last[holding], kind="stable")[:STACKS_MAX]]
    space = np.stack([shares.by_stack(one.rows, "space")[chosen] for one in held])
    old = _old_variance(survivors, held[0].timestamp_ns, shares.n_stacks)
    variance = (
        shares.by_stack(held[0].rows, "variance") + shares.by_stack(held[-1].rows, "variance") - 2 * old
    )
    times_ns = np.array([one.timestamp_ns for one in held], np.uint64)
    stayed = _stayed(survivors, times_ns, chosen, shares.n_stacks)
    return chosen, Series(instants.seconds, space, np.sqrt(np.maximum(variance[chosen], 0)), stayed)


def _stayed(
    survivors: Survivors, times_ns: NDArray[np.uint64], chosen: NDArray[np.int64], n_stacks: int
) -> Floats:
    """(t, n) bytes that each chosen stack's blocks of the last snapshot had at each instant: those that were there already."""
    live, stack = survivors.snapshot.live, stacks_of_blocks(survivors)
    column = np.full(n_stacks + 1, attribution.UNATTRIBUTED)
    column[chosen] = np.arange(len(chosen))
    column = column[np.where(stack == attribution.UNATTRIBUTED, n_stacks, stack)]
    rows, column = live[column != attribution.UNATTRIBUTED], column[column != attribution.UNATTRIBUTED]
    since = np.searchsorted(times_ns, rows["timestamp_ns"])  # the first instant that has it
    size = np.minimum(rows["size"].astype(np.float64) * attribution.sampling_weights(rows), SUM_MAX)
    shape = len(times_ns) + 1, len(chosen)
    came = np.bincount(since * len(chosen) + column, size, shape[0] * shape[1]).reshape(shape)
    return np.asarray(np.cumsum(came[:-1], axis=0), np.float64)


def _old_variance(survivors: Survivors, until_ns: int, n_stacks: int) -> Floats:
    """Of the blocks that the first instant had already: they are the same samples, and cancel in the difference."""
    live, stack = survivors.snapshot.live, stacks_of_blocks(survivors)
    old = (stack != attribution.UNATTRIBUTED) & (live["timestamp_ns"] <= np.uint64(until_ns))
    rows = live[old]
    sums = np.bincount(stack[old], attribution.variances(rows, attribution.sampling_weights(rows)), n_stacks)
    return np.asarray(sums, np.float64)
