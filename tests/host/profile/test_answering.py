"""What a program's answer is: by its places, by its sum, by memory without an owner; and where it cannot be told."""

from dataclasses import replace

import pytest

from memleak_android.host.profile.answer import Answer, AnswerState, MemoryLimit, Place
from memleak_android.host.profile.answering import answer_of
from memleak_android.host.profile.coverage import Answer as Met
from memleak_android.host.profile.coverage import Condition, Reason, findings
from memleak_android.host.profile.gate import GateRules, judge
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend, UnownedGrowth, UnownedPart
from memleak_android.host.profile.profile import MemoryUse, Profile
from memleak_android.host.reports.text.answer import answer_line, limit_text
from tests.support.builders.profiles import DECODE, POOL, empty_profile, profile

SPAN = GrowthSpan(10**9, 61 * 10**9, 23, 5)
HELD = 1 << 20
DONE = findings(Condition, [])


def growth(rate: float, error: float = 0.0, rise: int = HELD, trend: Trend = Trend.GROWS) -> Growth:
    return Growth(trend, rate, rate - error, rate + error, 10**9, rise)


def measured(*places: Growth | None, **changes: object) -> Profile:
    """A session with a place for each, every one with a stack."""
    made = tuple(
        Place(f"f{number}", "/srv/server", "user", HELD, 17, 1, growth=one)
        for number, one in enumerate(places)
    )
    sites = tuple(replace(DECODE, id=f"{n:016x}", place=n) for n in range(len(made)))
    totals = replace(profile().totals, inuse_space=HELD * len(made), unattributed_objects=0)
    values = {"growth_span": SPAN, "coverage": DONE, "places": made, "sites": sites, "totals": totals}
    return profile(**(values | changes))


def state(made: Profile) -> tuple[AnswerState, int]:
    answer = answer_of(made)
    return answer.state, answer.growing


def test_places_that_grow_are_added_up() -> None:
    answer = answer_of(measured(growth(3000, 30), growth(1000, 40), growth(9000, trend=Trend.BURST)))
    assert (answer.state, answer.growing) == (AnswerState.LEAKING, 2)
    assert answer.growth is not None
    assert (answer.growth.bytes_per_s, answer.growth.low, answer.growth.high) == (4000, 3950, 4050)


@pytest.mark.parametrize(
    "little",
    [growth(3000, 3000), growth(3, rise=HELD // 1000), growth(3000, trend=Trend.STEADY)],
    ids=["maybe none", "little", "steady"],
)
def test_what_may_be_nothing_is_no_leak(little: Growth) -> None:
    assert state(measured(little, growth(0, trend=Trend.STEADY))) == (AnswerState.NOT_GROWING, 0)


@pytest.mark.parametrize("heap", [None, growth(9, rise=HELD)])
def test_what_is_little_beside_older_blocks_is_no_leak(heap: Growth | None) -> None:
    """A session that attached counts new blocks only."""
    memory = (MemoryUse(7, 10**9, HELD, (("allocator", 1100 * HELD, 0), ("files", HELD, 0))),)
    made = measured(growth(9), heap_growth=heap, memory=memory)
    assert state(made)[0] is AnswerState.LEAKING
    attached = replace(made, target=replace(made.target, attached=True))
    assert state(attached) == (AnswerState.NOT_GROWING, 0)


def test_a_program_may_grow_where_no_place_does() -> None:
    risen = growth(100, 200, 4099, Trend.STEADY)
    made = measured(
        *[risen] * 97, growth(0, rise=-5, trend=Trend.STEADY), heap_growth=growth(9700, 97, rise=97 * 4099)
    )
    answer = answer_of(made)
    assert (answer.state, answer.growing, answer.spread) == (AnswerState.LEAKING, 0, 97)
    assert answer.growth == made.heap_growth
    assert "spread over 97 places" in answer_line(made, answer)


def test_the_sum_counts_where_the_places_explain_little_of_it() -> None:
    answer = answer_of(measured(growth(100), heap_growth=growth(9700, 97)))
    assert answer.growth is not None and (answer.growth.bytes_per_s, answer.growing) == (9700, 1)


def test_places_that_explain_little_are_not_what_it_is_spread_over() -> None:
    little = growth(100, 200, 4099, Trend.STEADY)
    answer = answer_of(measured(little, heap_growth=growth(9700, 97, rise=9000)))
    assert (answer.state, answer.spread) == (AnswerState.LEAKING, 0)


def test_memory_without_an_owner_is_not_spread_over_places() -> None:
    """Those rose at start-up, and the heap no more."""
    risen = growth(1 << 30, trend=Trend.BURST)
    unowned = (UnownedGrowth(UnownedPart.MAPPINGS, 500, 400, 600, 10**9, 1 << 22),)
    made = measured(*[risen] * 97, heap_growth=growth(9, trend=Trend.PLATEAU), unowned=unowned)
    answer = answer_of(made)
    assert (answer.state, answer.growing, answer.spread) == (AnswerState.LEAKING, 0, 0)
    assert "in memory without a stack" in answer_line(made, answer)


def test_memory_without_an_owner_counts() -> None:
    unowned = [UnownedGrowth(part, 500, 400, 600, 10**9, 1 << 22) for part in UnownedPart]
    for each, word in zip(unowned[1:4], ("allocator", "regions", "resident"), strict=True):
        hidden = answer_of(measured(unowned=(each,)))
        assert hidden.state is AnswerState.CANNOT_TELL and word in hidden.why
    answer = answer_of(measured(growth(3000), unowned=tuple(unowned)))
    assert (
        answer.growth is not None and answer.growth.bytes_per_s == 4000
    )  # two parts are growth, the others may be


def test_regions_that_are_mostly_reserved_count_as_what_is_written_to() -> None:
    written = UnownedGrowth(UnownedPart.REGIONS, 500, 400, 600, 10**9, 1 << 22)
    made = measured(growth(3000), growth(1 << 30), unowned=(written,))
    heap, stacks = made.places
    answer = answer_of(replace(made, places=(heap, replace(stacks, kind="mmap"))))
    assert answer.growth is not None and (answer.growth.bytes_per_s, answer.growing) == (3500, 2)


def test_older_blocks_that_go_as_fast_leave_growth_unknown() -> None:
    """Of a full cache that is attached to, the new blocks are counted and the older ones that they replace are not."""
    for rate, state in ((1400, AnswerState.LEAKING), (1600, AnswerState.CANNOT_TELL)):
        older = UnownedGrowth(UnownedPart.OLDER, rate, rate - 9, rate + 9, 10**9, 1 << 22)
        assert answer_of(measured(growth(3000), unowned=(older,))).state is state
        assert answer_of(measured(unowned=(older,))).state is AnswerState.NOT_GROWING


def test_what_a_suppression_matches_does_not_count() -> None:
    made = measured(growth(3000), heap_growth=growth(3000))
    made = replace(made, answer=answer_of(made))
    assert judge(made, GateRules(suppressions=("nothing",))).answer == made.answer
    assert judge(made, GateRules(suppressions=("planted::decode",))).answer == Answer(
        AnswerState.NOT_GROWING, growth=growth(3000)
    )


@pytest.mark.parametrize("condition", list(Condition))
def test_unseen_memory_is_no_clean_bill(condition: Condition) -> None:
    """A stack that is cut hides no growth. A balance that is not known hides it where growth is judged."""
    lacks = findings(Condition, [Reason(condition, Met.UNKNOWN, "for this")])
    hides = condition not in (Condition.STACKS, Condition.BALANCE)
    is_answer = condition is Condition.STACKS
    expected = Answer(AnswerState.NOT_GROWING) if is_answer else Answer(AnswerState.CANNOT_TELL, "for this")
    assert answer_of(measured(coverage=lacks)) == expected
    assert answer_of(measured(growth(3000), coverage=lacks)).state is AnswerState.LEAKING
    assert answer_of(measured(None, growth_span=None, coverage=lacks)).state is (
        AnswerState.CANNOT_TELL if hides else AnswerState.HELD_AT_EXIT
    )


def test_what_was_left_out_may_grow() -> None:
    lacks = findings(Condition, [Reason(Condition.PROGRAMS, Met.TOLERATED, "Python's objects")])
    steady = growth(0, trend=Trend.STEADY)
    assert answer_of(measured(steady, coverage=lacks)) == Answer(AnswerState.CANNOT_TELL, "Python's objects")
    assert answer_of(measured(None, growth_span=None, coverage=lacks)).state is AnswerState.HELD_AT_EXIT


@pytest.mark.parametrize("attached", [False, True])
def test_a_start_that_goes_on_may_hide_growth(attached: bool) -> None:
    made = measured(growth(0, trend=Trend.STEADY), heap_growth=growth(3000, trend=Trend.RISES))
    found = answer_of(replace(made, target=replace(made.target, attached=attached)))
    assert found.state is (AnswerState.NOT_GROWING if attached else AnswerState.CANNOT_TELL)
    assert attached or "still rises" in found.why


def test_short_sessions() -> None:
    short = measured(None, None, growth_span=GrowthSpan(0, 0, 3, 5))
    line = (
        "STILL HELD AT EXIT  ./server --port 80 (pid 4711) holds 2.0 MiB in 34 blocks from 2 places;"
        " too short to tell growth"
    )
    assert answer_line(short, answer_of(short)) == line
    runs_on = replace(short, target=replace(short.target, exit_status=None))
    line = "CANNOT TELL  ./server --port 80 (pid 4711): measured for 12.3 s only: 3 snapshots, 5 are needed"
    assert answer_line(runs_on, answer_of(runs_on)) == line
    empty = replace(empty_profile(), coverage=DONE)
    line = "NOT GROWING  ./server --port 80 (pid 4711) holds nothing at its exit"
    assert answer_line(empty, answer_of(empty)) == line
    ran = replace(empty, target=replace(empty.target, attached=True))
    filled = replace(empty, unowned=(UnownedGrowth(UnownedPart.RESIDENT, 500, 0, 1000, 10**9, 1 << 22),))
    assert [answer_of(each).state for each in (ran, filled)] == [AnswerState.CANNOT_TELL] * 2


@pytest.mark.parametrize("kind", ["pair:fd", "kernel"])
def test_whatever_a_program_can_give_back_is_held_at_its_exit(kind: str) -> None:
    handles = Place("open", "libc", kind, 0, 3, 1)
    totals = empty_profile().totals
    made = measured(
        None, growth_span=None, places=(handles,), sites=(replace(DECODE, place=0),), totals=totals
    )
    assert "holds 0 B in 3 blocks from 1 place" in answer_line(made, answer_of(made))


def test_blocks_without_a_stack_are_held_too() -> None:
    totals = replace(empty_profile().totals, unattributed_space=2048, unattributed_objects=1)
    made = replace(empty_profile(), coverage=DONE, totals=totals)
    assert "holds 2.0 KiB in 1 block without a stack" in answer_line(made, answer_of(made))


def test_the_runtime_s_own_blocks_are_not_held_at_exit() -> None:
    runtime = Place("call_init", "libc", "runtime", HELD, 1, 1)
    made = measured(None, growth_span=None, places=(runtime,), sites=(replace(POOL, place=0),))
    assert answer_of(made).state is AnswerState.NOT_GROWING


MIB = 1 << 20


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((), ""),
        ((MemoryLimit("a", 9 * MIB, 9 * MIB),), ""),  # reached
        (
            (
                MemoryLimit("ulimit -v", 99 * MIB, 9 * MIB),
                MemoryLimit("control group /app", 40 * MIB, 10 * MIB),
            ),
            "reaches 40.0 MiB (control group /app) in 10 min (9 min to 11 min)",
        ),
        ((MemoryLimit("a", 1 << 50, 0),), ""),  # not in this month
    ],
)
def test_the_limit_that_comes_first(limits: tuple[MemoryLimit, ...], expected: str) -> None:
    made = measured(growth(3 * MIB / 60, 0.2 * MIB / 60), limits=limits)
    assert limit_text(made, answer_of(made)) == expected
    steady = measured(growth(0, trend=Trend.STEADY), limits=limits)
    assert limit_text(steady, answer_of(steady)) == ""
