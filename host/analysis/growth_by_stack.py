"""Growth of each stack, and the time span that was judged, from the bytes held per key over time."""

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.block_sums import HeldBlocks
from memleak_android.host.analysis.growth_trend import INSTANTS_MIN, Series, judge_growth
from memleak_android.host.heap.attribution import UNATTRIBUTED
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.key_history import INTERVAL_MIN_NS, KeySnapshot, held_by_key
from memleak_android.host.heap.keys import SUM_MAX, KeyShares, KeyStacks, key_identity
from memleak_android.host.profile.profile import Growth, GrowthSpan
from memleak_android.host.wire.blocks import HELD_ROW, Reason

STACKS_MAX = 5_000  # judged: those that rose most

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SessionGrowth:
    """by_stack: by number of the stack; empty where there are too few instants."""

    span: GrowthSpan | None
    by_stack: dict[int, Growth]


@dataclass(frozen=True, slots=True)
class _Instants:
    """seconds: since the session's start; with a scenario, as if all its runs took run_s."""

    held: list[KeySnapshot]
    seconds: Floats
    run_s: float = 0.0


def session_growth(
    capture: Capture, held: HeldBlocks, keys: KeyStacks, end_ns: int, warmup_ns: int = 0, cooldown_ns: int = 0
) -> SessionGrowth:
    """Over the snapshots after the warm-up and until cooldown_ns before end_ns, the last snapshot (of `held`).

    The snapshot at the target's own exit is left out where the others suffice. With a scenario, over those after its runs.
    """
    begin_ns = int(capture.hello["monotonic_ns"]) if capture.hello is not None else 0
    until_ns = end_ns - cooldown_ns
    past = capture.key_history.instants
    if not past:
        return SessionGrowth(None, {})
    earlier = [each for each in past if begin_ns + warmup_ns <= each.timestamp_ns <= until_ns]
    if ends_ns := _ends_of_runs(capture, begin_ns):
        instants = _by_runs(earlier, ends_ns, begin_ns)
    else:
        earlier = [each for each in earlier if each.timestamp_ns <= end_ns - INTERVAL_MIN_NS]
        if not cooldown_ns and (not _ended_by_itself(capture) or len(earlier) < INSTANTS_MIN):
            is_enough = len(earlier) + 1 >= INSTANTS_MIN
            last = held_by_key(held.rows) if is_enough else np.empty(0, HELD_ROW)
            earlier.append(KeySnapshot(end_ns, last))
        instants = _by_time(earlier, begin_ns)
    if len(instants.held) < INSTANTS_MIN:
        return SessionGrowth(GrowthSpan(0, 0, len(instants.held), INSTANTS_MIN, instants.run_s), {})
    times_ns = [max(0, each.timestamp_ns - begin_ns) for each in instants.held]
    span = GrowthSpan(times_ns[0], times_ns[-1], len(times_ns), INSTANTS_MIN, instants.run_s)
    chosen, series = _series(instants, _shares(held, keys), held)
    growth = (replace(each, run_s=instants.run_s) for each in judge_growth(series))
    return SessionGrowth(span, dict(zip(chosen.tolist(), growth, strict=True)))


def _by_time(held: list[KeySnapshot], begin_ns: int) -> _Instants:
    return _Instants(held, np.array([each.timestamp_ns - begin_ns for each in held], np.float64) / 1e9)


def _by_runs(earlier: list[KeySnapshot], ends_ns: list[int], begin_ns: int) -> _Instants:
    """Runs count as equally long, whatever they took. A snapshot shortly before a run's end is that run's."""
    found: dict[int, KeySnapshot] = {}
    for each in earlier:
        number = bisect_left(ends_ns, each.timestamp_ns)
        if number < len(ends_ns) and ends_ns[number] - each.timestamp_ns < INTERVAL_MIN_NS:
            found[number] = each
    run_s = (ends_ns[-1] - ends_ns[0]) / 1e9 / max(len(ends_ns) - 1, 1)
    seconds = (ends_ns[0] - begin_ns) / 1e9 + np.array(list(found), np.float64) * run_s
    return _Instants(list(found.values()), seconds, run_s)


def _ends_of_runs(capture: Capture, begin_ns: int) -> list[int]:
    """Times of the snapshots after the runs of --scenario, or else at the marks; [] = growth is judged by time."""
    of_scenario = capture.session.findings.run_ends_ns
    known = times_of_marks(capture)[1] if of_scenario is None else list(of_scenario)
    is_sane = len(known) > 1 and known == sorted(set(known)) and known[0] >= begin_ns and known[-1] < 2**63
    return known if is_sane and known[-1] - known[0] >= len(known) * INTERVAL_MIN_NS else []


def times_of_marks(capture: Capture) -> tuple[str, list[int]]:
    """The name that was marked most often and its times; ("", []) where that is too seldom to judge by."""
    times: dict[str, list[int]] = {}
    for name, time_ns in capture.session.findings.marks:
        times.setdefault(name, []).append(time_ns)
    name = max(times, key=lambda each: len(times[each]), default="")
    return (name, times[name]) if len(times.get(name, ())) >= INSTANTS_MIN else ("", [])


def _ended_by_itself(capture: Capture) -> bool:
    return capture.end is not None and int(capture.end["reason"]) == Reason.TARGET_EXIT


def _shares(held: HeldBlocks, known: KeyStacks) -> KeyShares:
    live_keys, key = np.unique(key_identity(held.rows), return_inverse=True)
    size = np.maximum(held.rows["size"].astype(np.float64), 1.0) * held.weight
    whole = np.bincount(key, size, len(live_keys))
    has_stack, width = held.stack != UNATTRIBUTED, max(known.n_stacks, 1)
    pairs, number = np.unique(
        key[has_stack].astype(np.int64) * width + held.stack[has_stack], return_inverse=True
    )
    share = np.bincount(number, size[has_stack], len(pairs)) / whole[pairs // width]
    is_past = ~np.isin(known.keys, live_keys)
    keys = np.concatenate([live_keys, known.keys[is_past]])
    order = np.argsort(keys)
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys))
    return KeyShares(
        keys=keys[order],
        key=rank[np.concatenate([pairs // width, np.arange(len(live_keys), len(keys))])],
        stack=np.concatenate([pairs % width, known.stack[is_past]]),
        share=np.concatenate([share, np.ones(len(keys) - len(live_keys))]),
        n_stacks=known.n_stacks,
        n_live=len(pairs),
    )


def _series(instants: _Instants, shares: KeyShares, held: HeldBlocks) -> tuple[Numbers, Series]:
    first_rows, last_rows = instants.held[0].rows, instants.held[-1].rows
    rise = shares.by_stack(last_rows, "space") - shares.by_stack(first_rows, "space")
    holding = np.unique(shares.stack[: shares.n_live])
    chosen = holding[np.argsort(-rise[holding], kind="stable")[:STACKS_MAX]]
    space = np.stack([shares.by_stack(each.rows, "space")[chosen] for each in instants.held])
    variance = shares.by_stack(first_rows, "variance") + shares.by_stack(last_rows, "variance")
    times_ns = np.array([each.timestamp_ns for each in instants.held], np.uint64)
    variance -= 2 * _old_variance(held, times_ns[0], shares.n_stacks)
    stderr = np.sqrt(np.maximum(variance[chosen], 0))
    return chosen, Series(instants.seconds, space, stderr, _stayed(held, times_ns, chosen, shares.n_stacks))


def _stayed(held: HeldBlocks, times_ns: NDArray[np.uint64], chosen: Numbers, n_stacks: int) -> Floats:
    """(t, n) bytes of each chosen stack's blocks in the last snapshot that existed at each instant already."""
    column = np.full(n_stacks + 1, UNATTRIBUTED)
    column[chosen] = np.arange(len(chosen))
    column = column[np.where(held.stack == UNATTRIBUTED, n_stacks, held.stack)]
    is_chosen = column != UNATTRIBUTED
    since = np.searchsorted(times_ns, held.rows["timestamp_ns"][is_chosen])  # the first instant that has it
    size = np.minimum(held.rows["size"][is_chosen].astype(np.float64) * held.weight[is_chosen], SUM_MAX)
    column = column[is_chosen]
    shape = len(times_ns) + 1, len(chosen)
    came = np.bincount(since * len(chosen) + column, size, shape[0] * shape[1]).reshape(shape)
    return np.asarray(np.cumsum(came[:-1], axis=0), np.float64)


def _old_variance(held: HeldBlocks, until_ns: np.uint64, n_stacks: int) -> Floats:
    """Of the blocks that existed at the first instant: the same samples, so they cancel in the difference."""
    is_old = (held.stack != UNATTRIBUTED) & (held.rows["timestamp_ns"] <= until_ns)
    return np.asarray(np.bincount(held.stack[is_old], held.variance[is_old], n_stacks), np.float64)
