"""The kernel's figures against ours: what of a process's resident memory no counted block and no region explains.

In: smaps and the live table after each snapshot. Out: a row for each, and of the rows the growth that has no owner.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from math import hypot
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.growth_by_stack import SessionGrowth
from memleak_android.host.analysis.growth_rate import Floats, Series
from memleak_android.host.analysis.growth_trend import INSTANTS_MIN, judge_growth
from memleak_android.host.analysis.memory_use import Mapping, is_size
from memleak_android.host.heap import attribution
from memleak_android.host.heap.attribution import UNATTRIBUTED
from memleak_android.host.profile.growth import Growth, MappingSum, Trend, UnownedGrowth, UnownedPart
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, FIRST_REGION_FUNCTION, Rows

ROWS_MAX = 256  # of a session; then every second one goes
RISE_MIN = 1 << 20  # bytes: less growth is within what page tables, arenas and the times of reading differ by
_OLDER_MIN = 64 << 10  # bytes; it is compared with growth, which may be as small
_JUDGED_NS_MIN = 4 * 10**9  # in which five snapshots are taken, and each is followed by a reading
_MAPPINGS_MAX = 3
_RANGE = [("address", np.uint64), ("size", np.uint64)]
_USED_SHARE_MIN = 0.5  # of regions that grow: if less is written to, that is the rate
_GAP_MIN = 32  # bytes between blocks: what is less holds no block, it is headers and rounding
_BSS_MAX = 1 << 20  # of each module: more that is written to may be a table that the program fills
_SMALL = 20  # smaller than the largest by that factor: not named
# Of the columns that are judged.
_PARTS = (
    UnownedPart.MAPPINGS,
    UnownedPart.ALLOCATOR,
    UnownedPart.REGIONS,
    UnownedPart.RESIDENT,
    UnownedPart.OLDER,
)
# Parts of memory_use.py whose owner is another: code and data of files, a runtime's own heap, the tracer.
_OF_OTHERS = frozenset(("files", "java_heap", "graphics", "tracer"))


@dataclass(frozen=True, slots=True)
class Balance:
    """Resident bytes at one instant.

    unowned: of mappings without a block, beyond the regions and the addresses of the first reading. kept: the allocator's, beyond
    blocks. mapped: of mappings without a block, the regions in them included. resident: of both, blocks included. counted: of the
    blocks themselves.
    """

    unowned: int
    kept: int
    mapped: int
    resident: int
    counted: int
    largest: tuple[MappingSum, ...]


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Disjoint address ranges in order, and how many of their bytes come before each."""

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    before: NDArray[np.uint64]

    @classmethod
    def of(cls, rows: Rows, gap_min: int = 0) -> "_Ranges":
        """gap_min: smaller gaps between two of them belong to the first."""
        rows = rows[np.argsort(rows["address"], kind="stable")]
        start, end = rows["address"], rows["address"] + rows["size"]
        following = np.append(start[1:], end[-1:])
        end = np.where(following - end < gap_min, following, end)
        before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(end - start, dtype=np.uint64)])
        return cls(start, end, before)

    def below(self, address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Bytes of the ranges below each address."""
        n = np.searchsorted(self.start, address)
        ends = np.append(self.end, np.uint64(0))[n - 1]  # of none before it: 0
        over = np.where(ends > address, ends - address, np.uint64(0))
        return np.asarray((self.before[n] - over).astype(np.int64))

    def within(self, mappings: Sequence[Mapping]) -> list[int]:
        """Bytes of the ranges in each mapping. A process can have tens of thousands, so all are looked up at once."""
        start, end = (
            np.array([getattr(one, name) for one in mappings], np.uint64) for name in ("start", "end")
        )
        found: list[int] = (self.below(end) - self.below(start)).tolist()
        return found


def balance_of(mappings: Sequence[Mapping], live: Rows, first: Sequence[Mapping]) -> Balance:
    """live: LIVE_ROW of one process, blocks and regions. Handles of --pairs are no memory.

    first: the mappings of its first reading. What is written to there, as in a runtime's heap, has an end; shared memory of
    then, which others have mapped, is theirs.
    """
    known = np.array([(one.start, one.end - one.start) for one in first], _RANGE)
    shared = {(one.start, one.end, one.name) for one in first if one.part == "shared"}
    heap = live[attribution.is_heap(live)]
    blocks, regions = _Ranges.of(heap, _GAP_MIN), _Ranges.of(live[attribution.is_region(live)])
    unowned, kept, mapped, resident = Counter[str](), 0, 0, 0
    number = Counter[str]()
    columns = (_in_bss(mappings), *(each.within(mappings) for each in (regions, blocks, _Ranges.of(known))))
    for one, in_module, in_regions, counted, before in zip(mappings, *columns, strict=True):
        size = one.end - one.start  # 0: memory that has no addresses
        is_of_others = size and not (in_regions or counted) and (one.start, one.end, one.name) in shared
        if one.part in _OF_OTHERS or is_of_others:
            continue
        rss = one.rss - in_module
        resident += rss
        own = rss - in_regions
        if counted or one.part == "allocator":
            kept += own - counted
            continue
        mapped += rss
        if size:
            own = min(own, size - before)
        if own > 0:
            unowned[one.name] += own
            number[one.name] += 1
    largest = tuple(
        MappingSum(name[:256], size, number[name]) for name, size in unowned.most_common(_MAPPINGS_MAX)
    )
    return Balance(sum(unowned.values()), kept, mapped, resident, resident - mapped - kept, largest)


def _in_bss(mappings: Sequence[Mapping]) -> list[int]:
    """Resident bytes of each mapping that are variables of the module whose file is mapped right before it."""
    found = [0]
    for before, one in pairwise(mappings):
        is_bss = one.part == "anonymous" and before.part == "files" and before.end == one.start
        found.append(min(one.rss, _BSS_MAX) if is_bss else 0)
    return found[: len(mappings)]


def add_row(
    recorded: dict[str, Any] | None, timestamp_ns: int, read_ns: int, balance: Balance
) -> dict[str, Any]:
    """SESSION's "balance" with one row more, which is thinned if it becomes too long.

    timestamp_ns: when its blocks were held. read_ns: when its smaps were read, behind a long snapshot seconds later.
    """
    figures = (balance.unowned, balance.kept, balance.mapped, balance.resident, balance.counted)
    rows = [*(recorded["rows"] if recorded else ()), [timestamp_ns, *figures, read_ns]]
    if len(rows) > ROWS_MAX:
        rows = rows[::2]
    largest = [astuple(each) for each in balance.largest]
    return {**(recorded or {}), "rows": rows, "largest": largest}


def add_unread(recorded: dict[str, Any] | None) -> dict[str, Any]:
    """SESSION's "balance" after a snapshot at which the process, which runs, was not read."""
    known = recorded or {"rows": [], "largest": []}
    return {**known, "unread": known.get("unread", 0) + 1}


def unowned_growth(
    balances: Sequence[object], begin_ns: int, from_ns: int, to_ns: int
) -> tuple[UnownedGrowth, ...]:
    """The parts that grow; of regions where nothing without an owner does. Each is the sum of the processes.

    balances: of SESSION, unchecked, the target's first. begin_ns: of the session; from_ns, to_ns: what is judged.
    OLDER is the fall of what is beyond the counted blocks. Its cause is not told here.
    """
    of_target, *of_others = balances
    parts = defaultdict[UnownedPart, list[UnownedGrowth]](list)
    # Other processes come and go: those with too few readings are left out.
    judged = [one for one in of_others if len(_rows(one, from_ns, to_ns)) >= INSTANTS_MIN]
    for recorded in (of_target, *judged):
        for each in _growth_of_process(recorded, begin_ns, from_ns, to_ns):
            parts[each.part].append(each)
    return tuple(map(_sum, parts.values()))


def _sum(grown: Sequence[UnownedGrowth]) -> UnownedGrowth:
    """Of several processes. Errors add as independent ones do."""
    rate = sum(each.bytes_per_s for each in grown)
    return replace(
        max(grown, key=lambda each: each.rise),
        bytes_per_s=rate,
        low=rate - hypot(*(each.bytes_per_s - each.low for each in grown)),
        high=rate + hypot(*(each.high - each.bytes_per_s for each in grown)),
        since_ns=min(each.since_ns for each in grown),
        rise=sum(each.rise for each in grown),
    )


def _growth_of_process(
    recorded: object, begin_ns: int, from_ns: int, to_ns: int
) -> tuple[UnownedGrowth, ...]:
    rows = _rows(recorded, from_ns, to_ns)
    is_rising = all(a[0] < b[0] and a[6] < b[6] for a, b in pairwise(rows))
    if not isinstance(recorded, dict) or len(rows) < 2 or not is_rising:
        return ()
    if len(rows) < INSTANTS_MIN:
        return _unjudged(rows[0], rows[-1], begin_ns)
    taken, unowned, kept, mapped, resident, counted, read = np.array(rows, np.float64).T
    kept -= _held_at(read, taken, counted) - counted
    seconds = (read - begin_ns) / 1e9
    space = np.stack([unowned, kept, mapped, resident, kept[0] - kept], axis=1)
    stayed = np.minimum.accumulate(space[::-1], axis=0)[::-1]
    found = judge_growth(Series(seconds, space, np.zeros(space.shape[1]), stayed))
    listed = recorded.get("largest")
    known = listed[:_MAPPINGS_MAX] if isinstance(listed, list) else ()
    sums = [MappingSum(*each) for each in known if _is_mapping(each)]
    largest = tuple(each for each in sums if each.space * _SMALL >= sums[0].space)
    growing = [
        UnownedGrowth(
            part,
            each.bytes_per_s,
            each.low,
            each.high,
            each.since_ns,
            each.rise,
            largest if part is UnownedPart.MAPPINGS else (),
        )
        for part, each in zip(_PARTS, found, strict=True)
        if each.trend is Trend.GROWS and each.rise >= (_OLDER_MIN if part is UnownedPart.OLDER else RISE_MIN)
    ]
    is_unowned = any(each.part is UnownedPart.MAPPINGS for each in growing)
    return tuple(each for each in growing if not (is_unowned and each.part is UnownedPart.REGIONS))


def _held_at(read: Floats, taken: Floats, counted: Floats) -> Floats:
    """(n,) bytes of blocks when smaps were read, by the snapshots before and after; after the last they go on as before."""
    rate = (counted[-1] - counted[-2]) / (taken[-1] - taken[-2])
    last = counted[-1] + rate * (read[-1] - taken[-1])
    return np.asarray(np.interp(read, np.append(taken, read[-1]), np.append(counted, last)))


def is_unread(recorded: object, from_ns: int, to_ns: int) -> bool:
    """Whether unowned_growth() lacks only readings: in a time that is long enough, of a process that ran."""
    if not isinstance(recorded, dict) or to_ns - from_ns < _JUDGED_NS_MIN:
        return False
    unread, n_rows = recorded.get("unread"), len(_rows(recorded, from_ns, to_ns))
    return isinstance(unread, int) and n_rows < INSTANTS_MIN <= n_rows + unread


def _rows(recorded: object, from_ns: int, to_ns: int) -> list[Any]:
    """Those of a span. Older recordings have no resident memory and no counted bytes, 0, and no times of reading."""
    if not isinstance(recorded, dict) or not isinstance(recorded.get("rows"), list):
        return []
    rows = recorded["rows"][: 2 * ROWS_MAX]
    chosen = [row for row in rows if _is_row(row) and from_ns <= row[0] <= to_ns]
    return [row if len(row) == 7 else [*[*row, 0, 0][:6], row[0]] for row in chosen]


def _unjudged(first: Sequence[int], last: Sequence[int], begin_ns: int) -> tuple[UnownedGrowth, ...]:
    """The rise of resident memory between two readings, of which no trend is known."""
    rise = last[4] - first[4]
    if rise < RISE_MIN:
        return ()
    rate = 1e9 * rise / (last[6] - first[6])
    return (UnownedGrowth(UnownedPart.RESIDENT, rate, 0.0, 2 * rate, first[0] - begin_ns, rise),)


def is_unused(written: UnownedGrowth, reserved: float) -> bool:
    """Whether little of the bytes per second that regions reserve is written to, as of the stacks of threads."""
    return written.high < _USED_SHARE_MIN * reserved


def _is_row(row: object) -> bool:
    if not isinstance(row, (list, tuple)) or len(row) not in (4, 5, 7):
        return False
    return all(map(is_size, (row[0], row[1], *row[3:]))) and type(row[2]) is int and abs(row[2]) < 1 << 62


def _is_mapping(each: object) -> bool:
    if not isinstance(each, (list, tuple)) or len(each) != 3 or not isinstance(each[0], str):
        return False
    return is_size(each[1]) and is_size(each[2])


_NEW_SHARE_MIN = 0.5  # of what is written to in regions


def _is_of_regions(table: StackTable) -> NDArray[np.bool_]:
    """By stack: a call of the mmap family."""
    function = table.traces["function"][table.first_trace]
    return np.asarray((function >= FIRST_REGION_FUNCTION) & (function < FIRST_PAIR_FUNCTION))


def _of_regions(table: StackTable, growth: SessionGrowth) -> Collection[Growth]:
    """Of each stack, also of those that gave all back at the end."""
    if growth.history is None:
        return []
    each = np.arange(growth.history.n_stacks)
    return growth.history.judge(np.where(_is_of_regions(table), each, UNATTRIBUTED), len(each)).values()


def growth_of_regions(table: StackTable, growth: SessionGrowth) -> float:
    """Bytes per second that regions which grow reserve; 0 = none does."""
    return sum(each.bytes_per_s for each in _of_regions(table, growth) if each.trend is Trend.GROWS)


def new_regions(table: StackTable, growth: SessionGrowth) -> int:
    """Bytes of regions that came bit by bit, as the pages of a runtime's heap do for which many functions ask."""
    return sum(max(0, one.rise) for one in _of_regions(table, growth) if one.trend is not Trend.BURST)


def steady_regions(table: StackTable, growth: SessionGrowth) -> NDArray[np.bool_]:
    """By stack: a call of the mmap family whose regions do not grow."""
    is_steady = _is_of_regions(table)
    is_steady[[stack for stack, each in growth.by_stack.items() if each.trend is Trend.GROWS]] = False
    return is_steady


def with_growing_regions(
    unowned: Sequence[UnownedGrowth], came: int, reserved: float
) -> tuple[UnownedGrowth, ...]:
    """came: bytes of new regions. If they are few, what grows is what is written to in older ones, which has an end.

    reserved: bytes per second of stacks whose regions grow, of which little may be written to.
    """

    def is_new(each: UnownedGrowth) -> bool:
        is_regions = each.part is UnownedPart.REGIONS and not is_unused(each, reserved)
        return is_regions and came >= _NEW_SHARE_MIN * each.rise

    return tuple(
        replace(each, part=UnownedPart.GROWING_REGIONS) if is_new(each) else each for each in unowned
    )
