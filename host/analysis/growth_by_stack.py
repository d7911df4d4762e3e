"""Growth of each stack, and the time span that was judged, from the bytes held per key over time."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.block_sums import HeldBlocks
from memleak_android.host.analysis.growth_rate import Series
from memleak_android.host.analysis.growth_trend import INSTANTS_MIN, judge_growth
from memleak_android.host.analysis.process_sums import process_ends
from memleak_android.host.heap.attribution import UNATTRIBUTED, is_heap
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.key_history import INTERVAL_MIN_NS, KeySnapshot, held_by_key
from memleak_android.host.heap.keys import SUM_MAX, KeyShares, KeyStacks, key_identity
from memleak_android.host.profile.growth import Growth, GrowthSpan, grows
from memleak_android.host.wire.blocks import Reason, Rows

EXIT_SHARE_MAX = 0.9  # of what the snapshot before held: exit handlers free
DIP_SHARE_MAX = 0.5  # of what is held before and after
RISES_OF_ONE_MAX = 2  # what is allocated at once may come before and after a snapshot
STACKS_MAX = 5_000  # judged: those that rose most

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SessionGrowth:
    """by_stack: by number of the stack; empty where there are too few instants, and then there is no history."""

    span: GrowthSpan | None
    by_stack: dict[int, Growth]
    history: "StackHistory | None" = None

    def without_once(self, stacks: NDArray[np.bool_]) -> "SessionGrowth":
        """Of these (n_stacks,), sums leave out those that allocated once."""
        if self.history is None or not stacks.any():
            return self
        return replace(
            self, history=self.history.without(stacks & (self.history.rises() <= RISES_OF_ONE_MAX))
        )


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

    The snapshot at the target's own exit is left out where the others suffice or the exit has freed. With a scenario, over those after its runs.
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
        is_over = capture.end is not None and int(capture.end["reason"]) == Reason.TARGET_EXIT
        if is_over and len(earlier) > 1 and _is_of_exit(*earlier[-2:]):
            earlier.pop()
        if not cooldown_ns and (not is_over or len(earlier) < INSTANTS_MIN):
            last = KeySnapshot(end_ns, held_by_key(held.rows))
            if not is_over or not earlier or not _is_of_exit(earlier[-1], last):
                earlier.append(last)
        seconds = np.array([each.timestamp_ns - begin_ns for each in earlier], np.float64) / 1e9
        instants = _Instants(earlier, seconds)
    if len(instants.held) < INSTANTS_MIN:
        return SessionGrowth(GrowthSpan(0, 0, len(instants.held), INSTANTS_MIN, instants.run_s), {})
    times_ns = [max(0, each.timestamp_ns - begin_ns) for each in instants.held]
    span = GrowthSpan(times_ns[0], times_ns[-1], len(times_ns), INSTANTS_MIN, instants.run_s)
    instants, held = _of_running(instants, held, process_ends(capture))
    history = StackHistory(instants, _shares(held, keys), held)
    each = np.arange(history.n_stacks)
    group = np.where(history.is_held[:-1], each, UNATTRIBUTED)
    return SessionGrowth(span, history.judge(group, len(each)), history)


class StackHistory:
    """The bytes of each stack at the judged instants; judges stacks one by one or in groups.

    One more stack, the last, stands for the heap's blocks without a stack.
    """

    def __init__(self, instants: _Instants, shares: KeyShares, held: HeldBlocks) -> None:
        self._instants, self._shares, self._held = instants, shares, held
        self._stack_of_block = _stack_or_rest(held, shares.n_stacks - 1)
        self.n_stacks = shares.n_stacks - 1
        self.is_held = np.zeros(shares.n_stacks, bool)
        self.is_held[shares.stack[: shares.n_live]] = True
        self._counts = np.ones(self.n_stacks, bool)

    def without(self, stacks: NDArray[np.bool_]) -> "StackHistory":
        """Sums leave these out: (n_stacks,)."""
        found = copy(self)
        found._counts = self._counts & ~stacks
        return found

    def given_back(self) -> tuple[Numbers, Numbers]:
        """Stacks that hold nothing any more, those STACKS_MAX that held most at the last instant, and their bytes then."""
        space = self._shares.by_stack(self._instants.held[-1].rows, "space")
        space[self.is_held] = 0
        stacks = np.argsort(-space, kind="stable")[: min(STACKS_MAX, np.count_nonzero(space))]
        return stacks, np.rint(space[stacks]).astype(np.int64)

    def judge(self, group: Numbers, n_groups: int) -> dict[int, Growth]:
        """By group, those STACKS_MAX that rose most. group: (n_stacks,) number of each stack's, UNATTRIBUTED = in none."""
        group = self._counted(group)
        members = np.unique(group[group != UNATTRIBUTED])
        chosen = members[np.argsort(-self.risen(group, n_groups)[members], kind="stable")[:STACKS_MAX]]
        column = np.full(n_groups + 1, UNATTRIBUTED)
        column[chosen] = np.arange(len(chosen))
        judged = self._judge(column[np.append(group, UNATTRIBUTED)], len(chosen))
        return dict(zip(chosen.tolist(), judged, strict=True))

    def rises(self) -> Numbers:
        """(n_stacks,) between how many neighbouring instants, or before the first, each stack's bytes rise."""
        found, before = np.zeros(self.n_stacks, np.int64), np.zeros(self.n_stacks)
        for each in self._instants.held:
            now = self._shares.by_stack(each.rows, "space")[:-1]
            found += now > before
            before = now
        return found

    def risen(self, group: Numbers, n_groups: int) -> Floats:
        """Bytes that each group holds more at the last instant than at the first."""
        group = np.append(self._counted(group), UNATTRIBUTED)
        first, last = (self._sums(self._instants.held[i].rows, "space", group, n_groups) for i in (0, -1))
        return last - first

    def _counted(self, group: Numbers) -> Numbers:
        return np.where(self._counts, group, UNATTRIBUTED)

    def judge_heap(self, of_heap: NDArray[np.bool_]) -> Growth:
        """Of these stacks (n_stacks,) and the heap's blocks without a stack together."""
        (growth,) = self._judge(np.where(np.append(of_heap & self._counts, True), 0, UNATTRIBUTED), 1)
        return growth

    def _judge(self, column: Numbers, n: int) -> list[Growth]:
        """column: (n_stacks + 1,) which of n columns of a Series each stack counts for, UNATTRIBUTED = none."""
        held = self._instants.held
        space = without_dips(np.stack([self._sums(each.rows, "space", column, n) for each in held]))
        variance = sum(self._sums(held[i].rows, "variance", column, n) for i in (0, -1))
        times_ns = np.array([each.timestamp_ns for each in held], np.uint64)
        of_block = np.append(column, UNATTRIBUTED)[self._stack_of_block]  # UNATTRIBUTED, -1, finds itself
        variance -= 2 * self._old_variance(of_block, times_ns[0], n)
        stderr = np.sqrt(np.maximum(variance, 0))
        stayed = self._stayed(of_block, times_ns, n)
        # A block's time can be a tick early (CLOCK_MONOTONIC_COARSE), and of what was freed at exit none tells its own: as if
        # the first to come were the last to go.
        most = np.minimum.accumulate(space[::-1], axis=0)[::-1]
        stayed = np.where(stayed[-1] > 0, np.minimum(stayed, most), most)
        series = Series(self._instants.seconds, space, stderr, stayed)
        return [replace(each, run_s=self._instants.run_s) for each in judge_growth(series)]

    def _sums(self, rows: Rows, name: str, column: Numbers, n: int) -> Floats:
        is_counted = column != UNATTRIBUTED
        by_stack = self._shares.by_stack(rows, name)
        return np.asarray(np.bincount(column[is_counted], by_stack[is_counted], n), np.float64)

    def _stayed(self, of_block: Numbers, times_ns: NDArray[np.uint64], n: int) -> Floats:
        """(t, n) bytes of each column's blocks in the last snapshot that existed at each instant already."""
        is_counted = of_block != UNATTRIBUTED
        rows, weight = self._held.rows, self._held.weight
        since = np.searchsorted(times_ns, rows["timestamp_ns"][is_counted])  # the first instant that has it
        size = np.minimum(rows["size"][is_counted].astype(np.float64) * weight[is_counted], SUM_MAX)
        shape = len(times_ns) + 1, n
        came = np.bincount(since * n + of_block[is_counted], size, shape[0] * n).reshape(shape)
        return np.asarray(np.cumsum(came[:-1], axis=0), np.float64)

    def _old_variance(self, of_block: Numbers, until_ns: np.uint64, n: int) -> Floats:
        """Of the blocks that existed at the first instant: the same samples, so they cancel in the difference."""
        is_old = (of_block != UNATTRIBUTED) & (self._held.rows["timestamp_ns"] <= until_ns)
        return np.asarray(np.bincount(of_block[is_old], self._held.variance[is_old], n), np.float64)


def without_dips(space: Floats) -> Floats:
    """space: (t, n). A block that is freed just before its larger successor is allocated may be held at no instant between
    two that have it: there, what was held before counts.
    """
    before, at, after = space[:-2], space[1:-1], space[2:]
    is_dip = (at <= DIP_SHARE_MAX * before) & (after >= before)
    return np.vstack([space[:1], np.where(is_dip, before, at), space[-1:]])


def _of_running(
    instants: _Instants, held: HeldBlocks, ends_ns: Mapping[int, int]
) -> tuple[_Instants, HeldBlocks]:
    """Without what processes held when they ended, from then on, unless it grew until then: their memory went with them."""
    until_ns = instants.held[-1].timestamp_ns
    ended = {pid: end_ns for pid, end_ns in ends_ns.items() if end_ns <= until_ns}
    if not ended:
        return instants, held
    alive = Counter[int]()
    for each in instants.held:
        seen = np.unique(each.rows["pid"]).tolist()
        alive.update(pid for pid in seen if each.timestamp_ns < ended.get(pid, 0))
    short = [pid for pid in ended if alive[pid] < INSTANTS_MIN]
    lasting = [pid for pid in ended if alive[pid] >= INSTANTS_MIN]
    grown = np.concatenate([np.empty(0, np.uint64), *(_grown(instants, pid, ended[pid]) for pid in lasting)])

    def goes_on(rows: Rows, timestamp_ns: int) -> NDArray[np.bool_]:
        gone = np.isin(rows["pid"], [pid for pid in lasting if ended[pid] <= timestamp_ns])
        return ~(np.isin(rows["pid"], short) | gone & ~np.isin(key_identity(rows), grown))

    past = [replace(each, rows=each.rows[goes_on(each.rows, each.timestamp_ns)]) for each in instants.held]
    return replace(instants, held=past), held.where(goes_on(held.rows, until_ns))


def _grown(instants: _Instants, pid: int, end_ns: int) -> NDArray[np.uint64]:
    """The keys (key_identity) of a process that grew while it ran; all, if their sum did."""
    rows = [each.rows[each.rows["pid"] == pid] for each in instants.held if each.timestamp_ns < end_ns]
    first = next(i for i, each in enumerate(rows) if len(each))
    keys = np.unique(np.concatenate([key_identity(each) for each in rows]))
    space = np.zeros((len(rows) - first, len(keys) + 1))
    for i, each in enumerate(rows[first:]):
        space[i, np.searchsorted(keys, key_identity(each))] = each["space"]
    space[:, -1] = space.sum(axis=1)
    stayed = np.minimum.accumulate(space[::-1], axis=0)[::-1]
    seconds = instants.seconds[first : len(rows)]
    is_growing = np.array(
        list(map(grows, judge_growth(Series(seconds, space, np.zeros(len(keys) + 1), stayed))))
    )
    return np.asarray(keys[is_growing[:-1] | is_growing[-1]])


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


def _is_of_exit(before: KeySnapshot, last: KeySnapshot) -> bool:
    """The last snapshot is from within the program's exit, or behind it, if much was freed since the one before."""
    space_before, space = (float(one.rows["space"].sum(dtype=np.float64)) for one in (before, last))
    return space < EXIT_SHARE_MAX * space_before


def _stack_or_rest(held: HeldBlocks, rest: int) -> Numbers:
    """(n,) each block's stack; `rest` for the heap's without one."""
    return np.where((held.stack == UNATTRIBUTED) & is_heap(held.rows), rest, held.stack)


def _shares(held: HeldBlocks, known: KeyStacks) -> KeyShares:
    """With a last stack that has what the heap's blocks without one hold."""
    live_keys, key = np.unique(key_identity(held.rows), return_inverse=True)
    size = np.maximum(held.rows["size"].astype(np.float64), 1.0) * held.weight
    whole = np.bincount(key, size, len(live_keys))
    stack, width = _stack_or_rest(held, known.n_stacks), known.n_stacks + 1
    has_stack = stack != UNATTRIBUTED
    pairs, number = np.unique(key[has_stack].astype(np.int64) * width + stack[has_stack], return_inverse=True)
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
        n_stacks=width,
        n_live=len(pairs),
    )
