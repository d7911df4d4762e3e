"""Trends and rates of classic cases, by what they hold at each snapshot; and how often they are right, over many draws."""

from collections.abc import Callable
from itertools import combinations
from statistics import median

import numpy as np
import pytest

from memleak_android.host.analysis.growth_rate import Series, theil_sen
from memleak_android.host.analysis.growth_trend import judge_growth
from memleak_android.host.profile.growth import Growth, Trend
from tests.support.builders.behaviours import LEAKS, NO_LEAKS, Behaviour, after_long_start_up, queue

SECONDS = np.arange(1.0, 24.0)
DOUBLING = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 62.0])
NOISE = np.random.default_rng(7)


def all_stays(space: np.ndarray) -> np.ndarray:
    """(t, n) what of `space` (t, n) the blocks hold that stayed until the end, at the most."""
    return np.asarray(np.minimum.accumulate(space[::-1])[::-1])


def growth(space: object, seconds: np.ndarray = SECONDS, stderr: float = 0.0) -> Growth:
    column = np.asarray(space, np.float64).reshape(-1, 1)
    return judge_growth(Series(seconds, column, np.array([stderr]), all_stays(column)))[0]


def per_request(seconds: np.ndarray) -> np.ndarray:
    return 1009.0 * np.floor(seconds * 11)


def doubled_at(*seconds: int) -> np.ndarray:
    return 4096.0 * np.array([1, 2, 4, 8])[np.searchsorted(seconds, SECONDS, "right")]


def noise(scale: float) -> np.ndarray:
    return NOISE.normal(0, scale, len(SECONDS))


CASES = {
    "leak per request": (per_request(SECONDS), Trend.GROWS),
    "cache without a bound": (23_000.0 * SECONDS**0.8, Trend.GROWS),
    "cache with a bound, full after 6 s": (np.minimum(SECONDS, 6) * 10_007.0, Trend.PLATEAU),
    "cache with a bound, full after 12 s": (np.minimum(SECONDS, 12) * 10_007.0, Trend.PLATEAU),
    "full before the first snapshot, with churn": (1e6 + noise(20_000), Trend.STEADY),
    "one-time init": (np.full(len(SECONDS), 4_099.0), Trend.STEADY),
    "one-time init late": (np.where(SECONDS < 11, 0.0, 4_099.0), Trend.BURST),
    "burst on top of a steady load": (50_000 + noise(300) + np.where(SECONDS < 17, 0, 90_001), Trend.BURST),
    "realloc growth in pages": (4096 * np.ceil(SECONDS * 5_003 / 4096), Trend.GROWS),
    "realloc growth by doubling": (2.0 ** np.floor(10 + np.log2(SECONDS)), Trend.GROWS),
    "leak below noise of churn": (4_001 * SECONDS + noise(6_000), Trend.GROWS),
    "sawtooth: buffers flushed every 5 s": (10_007.0 * (SECONDS % 5 + 1), Trend.STEADY),
    "shrinks": (1e6 - 1_009 * SECONDS, Trend.STEADY),
    "a few bytes": (4_000_037 + 17 * SECONDS, Trend.STEADY),
    "thread per connection": (8_192.0 * np.floor(SECONDS / 3), Trend.GROWS),
    "buffer that doubled three times": (doubled_at(3, 7, 15), Trend.GROWS),
    "two of two plugins loaded": (30_011 * np.searchsorted([5, 13], SECONDS, "right"), Trend.PLATEAU),
    "twenty bytes in all": (np.minimum(SECONDS, 20), Trend.STEADY),
    "leaks a little of what it works with": (
        10_007 * SECONDS + 200_003 * (SECONDS % 7 >= 3) * (SECONDS % 7 < 5),
        Trend.GROWS,
    ),
    "works with more and less": (
        1_009 * SECONDS + 90_001 * (np.sin(SECONDS) + np.sin(SECONDS / 3)),
        Trend.STEADY,
    ),
    "begins to leak late": (np.where(SECONDS < 10, 0, (SECONDS - 9) * 1_009.0), Trend.GROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_classic_cases(name: str) -> None:
    space, expected = CASES[name]
    assert growth(space).trend is expected


# What snapshots saw once a second, in thousands of bytes.
STAIRS = {
    "a buffer that grows by half, two steps seen as one": (
        [2423, 8098, 13205, 13205, 20867, 20867, 32359, 32359, 32359],
        Trend.GROWS,
    ),
    "bursts seen as one step or two": (
        [0, 0, 0, 9, 20, *[20] * 7, 20, 29, 40, *[40] * 7, 40, 60, *[60] * 5],
        Trend.GROWS,
    ),
    "six equal loads, then none": ([0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 6, 6, 6, 6], Trend.PLATEAU),
    "even growth that has just paused": ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10], Trend.GROWS),
}


@pytest.mark.parametrize("name", STAIRS)
def test_stairs(name: str) -> None:
    space, expected = STAIRS[name]
    assert growth(np.array(space) * 1000.0, np.arange(1.0, len(space) + 1)).trend is expected


def test_snapshots_that_double_their_distance() -> None:
    assert growth(per_request(DOUBLING), DOUBLING).trend is Trend.GROWS
    assert growth(per_request(np.minimum(DOUBLING, 7)), DOUBLING).trend is Trend.PLATEAU


def test_long_gap_between_snapshots_is_not_a_burst() -> None:
    seconds = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 60.0, 61.0, 62.0])
    assert growth(per_request(seconds), seconds).trend is Trend.GROWS


def test_rate_of_a_staircase_is_its_rise_by_the_time() -> None:
    """Most of its slopes are 0, and so is their median."""
    space = doubled_at(11, 12, 14)
    assert theil_sen(SECONDS, space.reshape(-1, 1), np.array([9])).rate[0] == 0
    found = growth(space)
    assert found.trend is Trend.GROWS
    assert found.bytes_per_s == pytest.approx(found.rise / (SECONDS[-1] - found.since_ns / 1e9))
    assert 0 < found.low < found.bytes_per_s < found.high


def test_rate_and_its_interval_are_those_of_sens_definition() -> None:
    space = 1_009 * SECONDS + noise(500)
    slopes = sorted((space[j] - space[i]) / (SECONDS[j] - SECONDS[i]) for i, j in combinations(range(23), 2))
    width = 1.96 * (23 * 22 * 51 / 18) ** 0.5
    lowest = int((len(slopes) - width) / 2)
    rates = theil_sen(SECONDS, space.reshape(-1, 1), np.array([0]))
    assert rates.rate[0] == pytest.approx(median(slopes))
    assert (rates.low[0], rates.high[0]) == pytest.approx((slopes[lowest - 1], slopes[-lowest]))


def test_rate_counts_from_the_onset_on() -> None:
    late = growth(CASES["begins to leak late"][0])
    assert late.bytes_per_s == pytest.approx(1_009, rel=0.01)
    assert late.since_ns == 9 * 10**9
    assert late.rise == 14 * 1_009


def test_interval_holds_the_true_rate_nineteen_times_in_twenty() -> None:
    noise = np.random.default_rng(23).normal(0, 4_000, (len(SECONDS), 400))
    rates = theil_sen(SECONDS, 1e6 + 1_009 * SECONDS[:, None] + noise, np.zeros(400, np.int64))
    assert 0.92 <= np.mean((rates.low <= 1_009) & (rates.high >= 1_009)) <= 0.98


def test_noise_is_seldom_growth() -> None:
    noise = np.random.default_rng(29).normal(0, 20_000, (len(SECONDS), 1_000))
    found = judge_growth(Series(SECONDS, 1e6 + noise, np.zeros(1_000), all_stays(1e6 + noise)))
    assert sum(one.trend is Trend.GROWS for one in found) <= 5


def test_sampling_error_makes_the_interval_wider_and_growth_unsure() -> None:
    exact, sampled = growth(per_request(SECONDS)), growth(per_request(SECONDS), stderr=10_000)
    assert sampled.bytes_per_s == exact.bytes_per_s
    assert sampled.high - sampled.low == pytest.approx(2 * 1.96 * 10_000 / (22 - 0), rel=0.15)
    assert growth(per_request(SECONDS), stderr=200_000).trend is not Trend.GROWS


Floats = np.ndarray
DRAWS = 100
BYTES = 1009
RATES = {  # bytes per second, of those that have one whatever is drawn
    "even": 100 * BYTES,
    "even, seldom": BYTES / 2,
    "at requests": 10 * BYTES,
    "on errors only": 0.7 * BYTES,
    "beside churn": 10 * BYTES,
    "from late on": 20 * BYTES,
    "after start-up": 20 * BYTES,
    "a list that grows": 4096 / 0.4,
    "under a sawtooth": 40 * BYTES,
    "beside a queue": 10 * BYTES,
    "at uneven requests": 20 * BYTES,
    "backlog": 15 * BYTES,
}


def snapshots(end_s: float) -> Floats:
    """Each second, then each sixteenth of the time so far."""
    taken = [1.0]
    while taken[-1] + max(1.0, taken[-1] / 16) < end_s:
        taken.append(taken[-1] + max(1.0, taken[-1] / 16))
    return np.array([*taken, end_s])


def judged(behaviour: Behaviour, end_s: float, draws: int = DRAWS) -> list[Growth]:
    random, seconds = np.random.default_rng(41), snapshots(end_s)
    held = [behaviour(random, end_s).held(seconds) for _ in range(draws)]
    space, stayed = (np.stack(one, axis=1) for one in zip(*held, strict=True))
    return judge_growth(Series(seconds, space, np.zeros(draws), stayed))


def growing(found: list[Growth]) -> list[Growth]:
    """Those that the answer counts as leaks."""
    return [one for one in found if one.trend is Trend.GROWS and one.low > 0]


LONG = pytest.param(600.0, marks=pytest.mark.proof)


@pytest.mark.parametrize("end_s", [20.0, 60.0, LONG])
def test_leaks_are_seen(end_s: float) -> None:
    """After 20 s the few blocks of a rare leak may be chance."""
    of_each, of_all = (0.85, 0.97) if end_s < 60 else (0.98, 0.995)
    seen = {name: len(growing(judged(one, end_s))) / DRAWS for name, one in LEAKS.items()}
    assert min(seen.values()) >= of_each and np.mean(list(seen.values())) >= of_all, seen


@pytest.mark.parametrize("end_s", [20.0, 60.0, LONG])
def test_what_is_no_leak_is_seldom_called_one(end_s: float) -> None:
    alarms = {name: len(growing(judged(one, end_s))) / DRAWS for name, one in NO_LEAKS.items()}
    assert max(alarms.values()) <= 0.08 and np.mean(list(alarms.values())) <= 0.02, alarms


@pytest.mark.parametrize("end_s", [20.0, 60.0, LONG])
def test_a_leak_that_start_up_hides_is_not_called_steady(end_s: float) -> None:
    found = judged(after_long_start_up(0.7, 0.05), end_s)
    hidden = sum(one.trend not in (Trend.GROWS, Trend.RISES) for one in found)
    rising = sum(one.trend is Trend.RISES for no_leak in NO_LEAKS.values() for one in judged(no_leak, end_s))
    assert hidden <= 0.02 * DRAWS and rising <= 0.02 * DRAWS * len(NO_LEAKS), (hidden, rising)


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize(("end_s", "share"), [(20.0, 0.82), (60.0, 0.88)])
def test_the_true_rate_is_in_the_interval(name: str, end_s: float, share: float) -> None:
    found = growing(judged(LEAKS[name], end_s))
    assert sum(one.low <= RATES[name] <= one.high for one in found) >= share * len(found)


@pytest.mark.parametrize(("end_s", "half"), [(60.0, 0.1), (600.0, 0.05)])
@pytest.mark.parametrize("name", ["even", "even, seldom", "a list that grows"])
def test_an_even_leak_has_a_narrow_interval(name: str, end_s: float, half: float) -> None:
    halves = [(one.high - one.low) / 2 / one.bytes_per_s for one in judged(LEAKS[name], end_s)]
    assert np.median(halves) <= half


Draw = Callable[[np.random.Generator, Floats], Floats]


def drawn(draw: Draw, seconds: Floats, draws: int = 200) -> list[Growth]:
    random = np.random.default_rng(41)
    space = np.maximum(np.stack([draw(random, seconds) for _ in range(draws)], axis=1), 0)
    return judge_growth(Series(seconds, space, np.zeros(draws), all_stays(space)))


def test_samples_of_a_leak() -> None:
    """A megabyte a second in blocks of 1009 bytes, of which one per 64 KiB is sampled and stands for the others."""
    taken = -np.expm1(-BYTES / 65536)

    def draw(random: np.random.Generator, seconds: Floats) -> Floats:
        sampled = random.poisson(taken * 1000 * np.diff(seconds, prepend=0.0))
        return np.asarray(BYTES / taken * np.cumsum(sampled))

    found = growing(drawn(draw, snapshots(20.0)))
    assert len(found) >= 0.9 * 200
    assert sum(one.low <= 1000 * BYTES <= one.high for one in found) >= 0.88 * len(found)


def test_interval_of_plain_scatter_stays_useful() -> None:
    """Twenty snapshots with scatter of a fifth of what grows in all: a tenth of the rate, not many times it."""
    found = growing(
        drawn(lambda random, at: 1e6 + 3e4 * at + random.normal(0, 12e3, at.shape), snapshots(20.0))
    )
    assert len(found) == 200
    assert np.median([(one.high - one.low) / 2 for one in found]) < 0.25 * 3e4


def test_a_backlog_is_more_than_chance() -> None:
    """None of its blocks stays."""
    assert len(growing(judged(queue(65, 50, True), 20.0))) >= 0.9 * DRAWS
