"""From snapshots of keys to the growth of sites, on hand-made recordings."""

import json
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.analysis import pipeline
from memleak_android.host.analysis.growth_by_stack import without_dips
from memleak_android.host.analysis.pipeline import View
from memleak_android.host.heap.key_history import INSTANTS_MAX, KeyHistory, KeySnapshot, held_by_key
from memleak_android.host.profile import site_id
from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.coverage import Answer as Met
from memleak_android.host.profile.coverage import Condition
from memleak_android.host.profile.growth import Trend
from memleak_android.host.profile.profile import Profile
from memleak_android.host.recording.file import Recording
from memleak_android.host.wire.blocks import HELD_ROW, Block, BlockKind, ProcessEvent, Reason, encode_block
from memleak_android.host.wire.payloads import encode_text
from tests.support.builders.analysed import profile_of
from tests.support.builders.blocks import (
    SECOND,
    evidence,
    evidence_record,
    key_rows,
    live_rows,
    process,
    short_recording,
    snapshot,
)

LEAK, CACHE = 7, 9
LEAK_VADDR, CACHE_VADDR = 0x1000, 0x2000


def row(number: int, key: int, size: int, at_s: float, sample_bytes: int = 0) -> dict[str, int]:
    timestamp_ns = SECOND + round(at_s * SECOND)
    names = ("sequence", "key", "size", "timestamp_ns", "sample_bytes")
    return dict(zip(names, (number, key, size, timestamp_ns, sample_bytes), strict=True))


def taken(seconds: int, *rows: dict[str, int], keys: dict[str, int] | None = None) -> list[Block]:
    """A snapshot, half a second later."""
    counters = key_rows(keys) if keys else None
    at_ns = SECOND + seconds * SECOND + SECOND // 2
    return snapshot(live_rows(*rows), counters, number=seconds, timestamp_ns=at_ns)


def held_at(seconds: int, sample_bytes: int = 0) -> list[Block]:
    """A leak of 1009 bytes a second, and a cache of two blocks that is always full."""
    leaked = [row(100 + i, LEAK, 1009, i, sample_bytes) for i in range(1, seconds + 1)]
    cached = [row(1000 + i, CACHE, 30_011, i) for i in (seconds - 1, seconds)]
    return taken(seconds, *leaked, *cached)


def recording(path: Path, *snapshots: list[Block], reason: Reason = Reason.STOPPED) -> Path:
    blocks = [block for one in snapshots for block in one]
    return short_recording(path, *blocks, vaddrs={LEAK: LEAK_VADDR, CACHE: CACHE_VADDR}, reason=reason)


def trends(profile: Profile) -> dict[int, Trend]:
    return {site.frames[1].vaddr: site.growth.trend for site in profile.sites if site.growth is not None}


def test_leak_grows_and_full_cache_is_steady(tmp_path: Path) -> None:
    """As the raw recording says, the finished one does."""
    profile = profile_of(recording(tmp_path / "a", *map(held_at, range(2, 9))), finished=tmp_path / "b")
    assert profile_of(tmp_path / "b") == profile
    assert trends(profile) == {LEAK_VADDR: Trend.GROWS, CACHE_VADDR: Trend.STEADY}
    (leak,) = (site for site in profile.sites if site.frames[1].vaddr == LEAK_VADDR)
    assert leak.growth is not None and leak.growth.bytes_per_s == pytest.approx(1009)
    assert profile.growth_span is not None
    assert (profile.growth_span.from_ns, profile.growth_span.to_ns) == (2.5 * SECOND, 8.5 * SECOND)
    assert profile.growth_span.instants == 7


@pytest.mark.parametrize("missing", [(), (4,), (2, 9)])
def test_a_block_replaced_by_a_larger_one_grows_though_a_snapshot_missed_it(
    tmp_path: Path, missing: tuple[int, ...]
) -> None:
    snapshots = [
        taken(i, *([row(100 + i, LEAK, 400_000 * i, i)] if i not in missing else [])) for i in range(1, 13)
    ]
    profile = profile_of(recording(tmp_path / "r", *snapshots))
    assert trends(profile) == {LEAK_VADDR: Trend.GROWS}
    assert profile.answer is not None and profile.answer.state is AnswerState.LEAKING


def test_a_dip_is_one_only_if_all_comes_back() -> None:
    held = np.array([[0.0, 4, 1, 4, 8, 1, 2, 8, 5, 9, 1]]).T
    assert without_dips(held).T.tolist() == [[0, 4, 4, 4, 8, 1, 2, 8, 5, 9, 1]]


@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_sawtooth_grows_by_no_dip(tmp_path: Path, period: int) -> None:
    snapshots = [
        taken(i, *([row(100 + i, LEAK, 400_000 * (i % period), i)] if i % period else []))
        for i in range(1, 13)
    ]
    profile = profile_of(recording(tmp_path / "r", *snapshots))
    assert Trend.GROWS not in trends(profile).values()


@pytest.mark.parametrize(
    ("times", "grows"),
    [
        ([(ProcessEvent.EXIT, 3)], False),
        ([(ProcessEvent.EXIT, 7.5)], True),
        ([(ProcessEvent.EXIT, 3), (ProcessEvent.FORK, 3.5)], True),
    ],
    ids=["short", "judged", "given again"],
)
def test_memory_of_short_processes_is_no_growth(
    tmp_path: Path, times: list[tuple[ProcessEvent, float]], grows: bool
) -> None:
    """Of each short child of a shell loop some blocks were live at its exit."""
    events = [
        Block(BlockKind.PROCESS, process(event, pid=100, timestamp_ns=int(SECOND * (at + 1))))
        for event, at in times
    ]
    profile = profile_of(
        recording(tmp_path / "a", events, *map(held_at, range(2, 9))), finished=tmp_path / "b"
    )
    assert profile_of(tmp_path / "b") == profile
    assert profile.answer is not None
    assert (profile.answer.state is AnswerState.LEAKING) == grows


@pytest.mark.parametrize("leaks", [False, True])
def test_workers_that_are_replaced(leaks: bool, tmp_path: Path) -> None:
    """Every three seconds one begins, and ends nine seconds later without giving back what it holds."""
    stacks, processes, held = [], [], {second: list[dict[str, int]]() for second in range(1, 33)}
    for pid, since in ((200 + number, 3 * number) for number in range(11)):
        stacks.append(evidence_record(sequence=pid, key=CACHE, pid=pid, pc=0x400000 + CACHE_VADDR))
        for event, at in ((ProcessEvent.FORK, since), (ProcessEvent.EXIT, since + 9)):
            if at < 32:
                times = {"timestamp_ns": (at + 1) * SECOND}
                processes.append(Block(BlockKind.PROCESS, process(event, pid=pid, parent=100, **times)))
        for second in range(max(since, 1), 33):
            n = min(9, second - since + 1) if leaks else 1
            held[second] += [row(1000 * pid + i, CACHE, 40_000, since + i) | {"pid": pid} for i in range(n)]
    snapshots = [taken(second, *rows) for second, rows in held.items()]
    path = recording(tmp_path / "a", [*processes, evidence(*stacks)], *snapshots)
    profile = profile_of(path, finished=tmp_path / "b")
    assert profile_of(tmp_path / "b") == profile
    assert profile.answer is not None and (profile.answer.state is AnswerState.LEAKING) == leaks


def test_a_leak_whose_stack_was_not_captured_is_one(tmp_path: Path) -> None:
    blocks = [block for second in range(2, 9) for block in held_at(second)]
    profile = profile_of(short_recording(tmp_path / "a", *blocks, vaddrs={CACHE: CACHE_VADDR}))
    assert trends(profile) == {CACHE_VADDR: Trend.STEADY}
    assert profile.heap_growth is not None
    assert profile.heap_growth.bytes_per_s == pytest.approx(1009)
    assert profile.answer is not None and profile.answer.state is AnswerState.LEAKING


def test_few_snapshots_give_no_verdict(tmp_path: Path) -> None:
    profile = profile_of(recording(tmp_path / "a", *map(held_at, range(2, 6))))
    assert trends(profile) == {}
    assert profile.growth_span is not None and not profile.growth_span.is_judged
    assert profile_of(recording(tmp_path / "b", held_at(5))).growth_span is None


@pytest.mark.parametrize(
    ("view", "from_s", "to_s"),
    [(View(warmup_ns=5 * SECOND), 5.5, 11.5), (View(cooldown_ns=3 * SECOND), 2.5, 8.5)],
    ids=["warm-up", "tail"],
)
def test_warm_up_and_tail_are_left_out(tmp_path: Path, view: View, from_s: float, to_s: float) -> None:
    span = profile_of(recording(tmp_path / "a", *map(held_at, range(2, 12))), view).growth_span
    assert span is not None and span.instants == 7
    assert (span.from_ns, span.to_ns) == (from_s * SECOND, to_s * SECOND)


def test_what_rises_in_the_tail_alone_grows_no_more_with_cooldown(tmp_path: Path) -> None:
    leaked = [row(100 + i, LEAK, 1009 if i < 8 else 1_000_000, i) for i in range(1, 12)]
    snapshots = [taken(i, *(leaked[:1] if i < 7 else leaked[:i])) for i in range(1, 12)]
    path = recording(tmp_path / "a", *snapshots)
    assert trends(profile_of(path))[LEAK_VADDR] is Trend.GROWS
    assert trends(profile_of(path, View(cooldown_ns=5 * SECOND)))[LEAK_VADDR] is Trend.STEADY


@pytest.mark.parametrize(("n_snapshots", "expected"), [(6, 5), (5, 5)])
def test_snapshot_at_the_targets_exit_is_left_out_where_others_suffice(
    tmp_path: Path, n_snapshots: int, expected: int
) -> None:
    snapshots = map(held_at, range(2, 2 + n_snapshots))
    span = profile_of(recording(tmp_path / "a", *snapshots, reason=Reason.TARGET_EXIT)).growth_span
    assert span is not None and span.instants == expected


@pytest.mark.parametrize(
    ("n_read", "serial", "is_known"), [(4, "", False), (4, "device", True), (5, "", True)]
)
def test_what_the_kernel_counts_was_read_too_seldom(
    n_read: int, serial: str, is_known: bool, tmp_path: Path
) -> None:
    """Some of eight snapshots have no reading of smaps: growth beyond the blocks is unknown."""
    rows = [[2 * SECOND + i * SECOND, 0, 0, 0, 0] for i in range(n_read)]
    balance = {"rows": rows, "largest": [], "unread": 8 - n_read}
    session = encode_text(BlockKind.SESSION, json.dumps({"balance": balance, "serial": serial}))
    cached = [row(1, CACHE, 30_011, 1)]
    profile = profile_of(recording(tmp_path / "a", [session], *(taken(i, *cached) for i in range(2, 10))))
    (found,) = (each for each in profile.coverage if each.condition is Condition.BALANCE)
    assert found.answer is (Met.YES if is_known else Met.UNKNOWN)


def by_runs(path: Path, ends_s: list[int], *snapshots: list[Block], ends: object = None) -> Path:
    ends_ns = [SECOND + end * SECOND + SECOND // 2 for end in ends_s]
    session = {"scenario": {"command": "x", "ends_ns": ends_ns if ends is None else ends}}
    return recording(path, [encode_text(BlockKind.SESSION, json.dumps(session))], *snapshots)


@pytest.mark.parametrize("early_s", [0, 0.6])
def test_growth_by_runs_does_not_mind_how_long_they_take(tmp_path: Path, early_s: float) -> None:
    """A block each second: by time it grows by as much in seven seconds as in all the others.

    early_s: of a coarse clock, by which a block is older than the snapshot before it.
    """
    ends = [2, 3, 4, 11, 12]
    rows = [row(100 + i, LEAK, 1009, at - early_s) for i, at in enumerate(ends)]
    blocks = [taken(end, *rows[: n + 1]) for n, end in enumerate([*ends, 13])]  # the last: the session's own
    profile = profile_of(by_runs(tmp_path / "a", ends, *blocks))
    ((growth, span),) = ((site.growth, profile.growth_span) for site in profile.sites)
    assert growth is not None and span is not None
    assert growth.trend is Trend.GROWS
    assert growth.run_s == span.run_s == pytest.approx(2.5)
    assert [growth.bytes_per_s * 2.5, growth.low * 2.5, growth.high * 2.5] == pytest.approx([1009] * 3)
    assert span.instants == 5


def test_a_run_with_two_snapshots_at_once_counts(tmp_path: Path) -> None:
    """Both hold the same, and the second is passed over (INTERVAL_MIN_NS)."""
    blocks = [held_at(second) for second in range(2, 8)]
    times = [SECOND + second * SECOND + SECOND // 2 for second in range(2, 7)]
    late = [*times[:4], times[4] + 600_000]
    session = [encode_text(BlockKind.SESSION, json.dumps({"marks": [["page", at] for at in late]}))]
    span = profile_of(recording(tmp_path / "a", session, *blocks)).growth_span
    assert span is not None and span.instants == 5


def test_last_run_may_end_with_the_session(tmp_path: Path) -> None:
    blocks = list(map(held_at, range(2, 7)))
    last = snapshot(live_rows(row(101, LEAK, 1009, 1)), number=9, timestamp_ns=7 * SECOND + SECOND // 2 + 1)
    span = profile_of(by_runs(tmp_path / "a", [2, 3, 4, 5, 6], *blocks, last)).growth_span
    assert span is not None and span.instants == 5


@pytest.mark.parametrize("ends", [[5, 4, 3], [1, 2, 3], "x", [None], [2**63, 2**64], [True, 10**11]])
def test_ends_of_runs_that_cannot_be_are_passed_over(tmp_path: Path, ends: object) -> None:
    profile = profile_of(by_runs(tmp_path / "a", [], *map(held_at, range(2, 9)), ends=ends))
    assert profile.growth_span is not None and profile.growth_span.run_s == 0


def test_sampled_growth_is_less_sure_than_counted(tmp_path: Path) -> None:
    def width(sample_bytes: int) -> float:
        path = recording(tmp_path / str(sample_bytes), *(held_at(i, sample_bytes) for i in range(2, 9)))
        (growth,) = (s.growth for s in profile_of(path).sites if s.frames[1].vaddr == LEAK_VADDR)
        assert growth is not None
        return (growth.high - growth.low) / growth.bytes_per_s

    # six blocks since the first snapshot, each with a variance of s²(1-p)/p²; p = 1 - exp(-1009/4096)
    p = 1 - np.exp(-1009 / 4096)
    stderr = np.sqrt(6 * (1 - p)) * 1009 / p
    assert width(0) == pytest.approx(0, abs=1e-9)
    assert width(4096) == pytest.approx(2 * 1.96 * stderr / 6 / (1009 / p), rel=0.01)


def test_sums_by_process_and_key() -> None:
    live = live_rows(
        {"key": 7, "size": 5, "pid": 1}, {"key": 7, "size": 11, "pid": 2}, {"key": 7, "size": 6, "pid": 1}
    )
    assert sorted(held_by_key(live).tolist()) == [(7, 1, 11, 0.0), (7, 2, 11, 0.0)]
    assert len(held_by_key(live[:0])) == 0


def test_instants_are_bounded_and_stay_spread() -> None:
    series = KeyHistory()
    for i in range(5 * INSTANTS_MAX):
        series.add(KeySnapshot(i * SECOND, np.empty(0, HELD_ROW)))
        series.add(KeySnapshot(i * SECOND, np.empty(0, HELD_ROW)))  # no later: passed over
    times = np.array([one.timestamp_ns for one in series.instants]) / SECOND
    assert len(times) == INSTANTS_MAX
    assert (times[0], times[-1]) == (0, 5 * INSTANTS_MAX - 1)
    assert np.diff(times).max() <= 16


def test_hostile_held_rows_end_in_no_infinity(tmp_path: Path) -> None:
    path = recording(tmp_path / "a", *map(held_at, range(2, 9)))
    profile_of(path, finished=tmp_path / "b")
    data = bytearray()
    for _, block in Recording(tmp_path / "b").blocks():
        payload = block.payload
        if block.kind == BlockKind.HELD:  # the last column is that of variances
            payload = payload[:-16] + np.array([np.nan, np.inf]).tobytes()
        data += encode_block(Block(block.kind, payload))
    hostile = tmp_path / "c"
    hostile.write_bytes((tmp_path / "b").read_bytes()[:16] + data)
    found = [site.growth for site in profile_of(hostile).sites if site.growth is not None]
    assert found and all(np.isfinite([one.bytes_per_s, one.low, one.high]).all() for one in found)


LENGTHS = (20, 21, 25, 32, 26, 22, 27, 34, 31, 29, 35, 34, 31, 36, 33)  # may be chance


@pytest.mark.parametrize(("oldest_first", "expected"), [(True, Trend.STEADY), (False, Trend.GROWS)])
def test_what_wanders_grows_only_where_its_blocks_stay(
    tmp_path: Path, oldest_first: bool, expected: Trend
) -> None:
    waiting: list[tuple[int, int]] = []  # number and second of each block
    snapshots = []
    for second, length in enumerate(LENGTHS, start=1):
        come = length if oldest_first else max(0, length - len(waiting))
        waiting = [] if oldest_first else waiting[:length]
        waiting += [(1000 * second + i, second) for i in range(come)]
        snapshots.append(taken(second, *(row(number, LEAK, 1009, at) for number, at in waiting)))
    assert trends(profile_of(recording(tmp_path / "a", *snapshots))) == {LEAK_VADDR: expected}


@pytest.mark.parametrize(
    ("before", "after", "expected"), [(3_000, 13_000, Trend.GROWS), (13_000, 3_000, Trend.STEADY)]
)
def test_a_place_of_which_one_stack_grows_and_the_others_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, expected: Trend
) -> None:
    """Nodes and the table that lists them, which is doubled once; blocks that move from one stack to another do not grow."""
    monkeypatch.setattr(site_id, "_place_identity", lambda frame: b"one")
    snapshots = [
        taken(
            second,
            *(row(100 + i, LEAK, 1009, i) for i in range(1, second + 1)),
            row(1000, CACHE, before, 0) if second < 6 else row(1001, CACHE, after, 6),
            keys={"key": LEAK, "alloc_objects": second},
        )
        for second in range(2, 12)
    ]
    profile = profile_of(recording(tmp_path / "a", *snapshots))
    assert trends(profile)[LEAK_VADDR] is Trend.GROWS
    (place,) = profile.places
    assert place.growth is not None and place.growth.trend is expected
    assert place.growth.bytes_per_s == pytest.approx(1009) or expected is Trend.STEADY


@pytest.mark.parametrize(
    ("imports", "again", "grows"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_what_is_imported_once_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: bool, again: bool, grows: bool
) -> None:
    """A block every quarter of a second, each by a stack of its own, or all by one."""
    monkeypatch.setattr(pipeline, "imports_python_module", lambda _: imports)
    blocks = [row(i, 1 + i * (not again), 2003, i / 4) for i in range(44)]
    snapshots = [taken(second, *blocks[: 4 * second]) for second in range(2, 12)]
    vaddrs = {block["key"]: 0x1000 + 16 * block["key"] for block in blocks}
    recorded = [block for one in snapshots for block in one]
    path = short_recording(tmp_path / "a", *recorded, vaddrs=vaddrs, reason=Reason.STOPPED)
    assert (profile_of(path).answer.state is AnswerState.LEAKING) == grows


def test_a_stack_keeps_what_it_held_under_an_earlier_key(tmp_path: Path) -> None:
    """The cache's blocks of the first three seconds have another key of the same stack, which nothing holds at the end."""
    early = 5
    counters = {"key": early, "alloc_objects": 4, "alloc_bytes": 120_044}
    snapshots = [
        taken(
            second,
            *(row(10 * second + i, early if second < 5 else CACHE, 30_011, second) for i in range(2)),
            keys=counters,
        )
        for second in range(2, 10)
    ]
    earlier = [evidence(evidence_record(sequence=2, key=early, pc=0x402000))]
    path = recording(tmp_path / "a", earlier, *snapshots)
    assert trends(profile_of(path)) == {CACHE_VADDR: Trend.STEADY}


@pytest.mark.parametrize(("reason", "instants"), [(Reason.TARGET_EXIT, 7), (Reason.STOPPED, 9)])
def test_a_snapshot_from_within_the_exit_is_left_out(tmp_path: Path, reason: Reason, instants: int) -> None:
    """Exit handlers have freed nearly all by then. What falls while a program runs counts."""
    freed = [taken(seconds, row(101, LEAK, 1009, 1)) for seconds in (9, 10)]
    span = profile_of(
        recording(tmp_path / "a", *map(held_at, range(2, 9)), *freed, reason=reason)
    ).growth_span
    assert span is not None and span.instants == instants


@pytest.mark.parametrize("n_held", [3, 4])
def test_what_the_exit_freed_does_not_complete_the_snapshots(tmp_path: Path, n_held: int) -> None:
    """A program that grew until it ended and freed all did not level off."""
    freed = [taken(seconds, row(101, LEAK, 1009, 1)) for seconds in range(2 + n_held, 7)]
    snapshots = [*map(held_at, range(2, 2 + n_held)), *freed]
    span = profile_of(recording(tmp_path / "a", *snapshots, reason=Reason.TARGET_EXIT)).growth_span
    assert len(snapshots) == 5
    assert span is not None and not span.is_judged
