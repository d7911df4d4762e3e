"""Places of two builds: lines move, functions are renamed, growth counts before sums."""

from dataclasses import replace

from memleak_android.host.profile.answer import Answer, AnswerState, Place
from memleak_android.host.profile.changes import Change, Outcome
from memleak_android.host.profile.comparison import compare
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.reports.text.comparison import difference_line
from tests.support.builders.profiles import CODEC, frame, profile

BYTES = 1_000


def place(
    function: str, *, space: int = BYTES, line: int = 7, rate: float = 0.0, file: str = "/src/a.c"
) -> Place:
    growth = Growth(Trend.GROWS, rate, rate - 10, rate + 10, 0, 90_000) if rate else None
    return Place(function, "/lib/libcodec.so", "user", space, 2, 1, growth=growth, file=file, line=line)


def of(*places: Place, errors: tuple[int, ...] = ()) -> Profile:
    """A profile whose growth was judged, with a site for each place."""
    sites = [
        CallSite(f"{number:016x}", each.space, 2, None, None, 5, "user", "ROOT", (frame(CODEC, each.function),), place=number,
                 stderr_space=errors[number] if errors else None)
        for number, each in enumerate(places)
    ]  # fmt: skip
    growths = [each.growth for each in places if each.growth]
    answer = Answer(AnswerState.LEAKING, growth=growths[0]) if growths else Answer(AnswerState.NOT_GROWING)
    made = profile(sites=sites)
    return replace(made, places=places, answer=answer, growth_span=GrowthSpan(0, 9, 5, 5))


def changes(old: Profile, new: Profile) -> list[tuple[Change, str, str, int]]:
    return [(one.change, one.place.function, one.former, one.space) for one in compare(old, new).places]


def test_lines_that_moved_are_no_difference() -> None:
    assert changes(of(place("f", line=7)), of(place("f", line=19))) == []
    two, one = (place("f", space=40, line=7), place("f", space=60, line=9)), place("f", space=100, line=12)
    assert changes(of(*two), of(replace(one, objects=4))) == []


def test_each_change() -> None:
    old = of(place("gone", file="/src/b.c"), place("same"), place("grown"), place("shrunk"))
    new = of(
        place("same"),
        place("grown", space=1_500),
        place("shrunk", space=10),
        place("new", space=9, file="/src/c.c"),
    )
    assert changes(old, new) == [
        (Change.GROWN, "grown", "", 500),
        (Change.NEW, "new", "", 9),
        (Change.SHRUNK, "shrunk", "", -990),
        (Change.GONE, "gone", "", -BYTES),
    ]
    assert sorted(one[3] for one in changes(new, old)) == sorted(-one[3] for one in changes(old, new))


def test_a_function_that_was_renamed() -> None:
    """It is the only one that has gone from its file, and the other the only one that has come."""
    assert changes(of(place("f"), place("h")), of(place("g"), place("h"))) == []
    more = replace(place("h"), objects=9)
    assert changes(of(place("f")), of(place("g"), more)) == [(Change.NEW, "h", "", BYTES)], (
        "g has as many blocks as f had"
    )
    assert changes(of(place("f")), of(place("g", space=1_500, file="/elsewhere/a.c"))) == [
        (Change.GROWN, "g", "f", 500)
    ]
    assert [one[0] for one in changes(of(place("f")), of(place("g"), place("h")))] == [
        Change.NEW,
        Change.NEW,
        Change.GONE,
    ]
    assert [one[0] for one in changes(of(place("f")), of(place("g", file="/src/b.c")))] == [
        Change.NEW,
        Change.GONE,
    ]


def test_growth_counts_before_sums() -> None:
    found = compare(
        of(place("f"), place("g", space=9_000)), of(place("f", rate=500.0), place("g", space=90_000))
    )
    assert [one.place.function for one in found.places] == ["f", "g"]
    growth = found.places[0].growth
    assert growth is not None and (growth.bytes_per_s, growth.margin) == (500.0, 10.0)
    assert found.difference.outcome is Outcome.WORSE
    back = compare(of(place("f", rate=500.0)), of(place("f", rate=505.0)))
    assert (back.places, back.difference.outcome) == ((), Outcome.SAME), "within the intervals"


def test_of_two_leaks_the_rates_are_compared() -> None:
    """The longer session holds more at the same rate: the leak did not get worse."""
    old = of(place("f", rate=3_000.0))
    for rate, line in (
        (3_005.0, "SAME  as before: both leak, 175.8 ± 0.6 KiB/min before and 176.1 ± 0.6 KiB/min now"),
        (3_000.0, "SAME  as before: both leak, 175.8 ± 0.6 KiB/min"),
        (
            2_000.0,
            "BETTER  grows by 58.6 ± 0.8 KiB/min less, 175.8 ± 0.6 KiB/min before and 117.2 ± 0.6 KiB/min now",
        ),
    ):
        found = compare(old, of(place("f", rate=rate, space=90_000)))
        assert difference_line(found) == line
        assert len(found.places) == (rate == 2_000.0)
    assert difference_line(compare(of(place("f")), of(place("f", space=90_000)))).startswith(
        "WORSE  holds 86.9 KiB more"
    )


def test_estimates_within_their_error_are_the_same() -> None:
    old = of(place("f", space=100_000), errors=(3_000,))
    for space, count in ((112_727, 0), (112_729, 1)):  # 3 × √(3000² + 3000²) = 12,728
        assert len(changes(old, of(place("f", space=space), errors=(3_000,)))) == count, space


def test_of_profiles_without_places() -> None:
    whole = of(place("f"))
    assert compare(replace(whole, places=()), of(place("g"))).places == ()
    assert [one[0] for one in changes(of(), of(place("g")))] == [Change.NEW]
