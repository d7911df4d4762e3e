"""How often trend and interval are right: many draws of each case, at the snapshots that sessions of 20 and 30 s take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from memleak_android.host.analysis.growth_trend import Series, judge_growth
from memleak_android.host.profile.growth import Growth, Trend
from tests.host.analysis.test_growth_trend import all_stays

Floats = np.ndarray
Draw = Callable[[np.random.Generator, Floats], Floats]
DRAWS = 200
SECONDS = [np.arange(1.0, 21.0), np.arange(0.5, 30.1, 0.5)]  # as without --interval, and with 500 ms
GIVEN_BACK = {Trend.STEADY, Trend.PLATEAU}


def sawtooth(share: float) -> Draw:
    """Filled and emptied, `share` of the time each; begun anywhere in it."""

    def draw(random: np.random.Generator, seconds: Floats) -> Floats:
        period = seconds[-1] * share
        return np.asarray(
            1e6 * ((seconds / period + random.uniform()) % 1) + random.normal(0, 2e3, seconds.shape)
        )

    return draw


def full_cache(share: float) -> Draw:
    """Eight megabytes, full after `share` of the time; entries differ in size."""
    return lambda random, seconds: (
        8e6 * np.minimum(seconds / seconds[-1] / share, 1) + random.normal(0, 12e3, seconds.shape)
    )


def random_keys(random: np.random.Generator, seconds: Floats) -> Floats:
    """A cache that random keys fill: ever slower."""
    filled = 1 - np.exp(-6 * seconds / seconds[-1])
    return np.asarray(8e6 * filled + random.normal(0, 8e3, seconds.shape))


def stops(random: np.random.Generator, seconds: Floats) -> Floats:
    return np.asarray(3e4 * np.minimum(seconds, seconds[-1] / 2) + random.normal(0, 500, seconds.shape))


def starts_late(random: np.random.Generator, seconds: Floats) -> Floats:
    return np.asarray(3e4 * np.maximum(seconds - 0.6 * seconds[-1], 0) + random.normal(0, 500, seconds.shape))


def after_start_up(random: np.random.Generator, seconds: Floats) -> Floats:
    """Ten megabytes at once, after which 30 KB/s leak: the small and steady part is what grows."""
    return np.asarray(1e7 * (seconds > 3.2) + 3e4 * seconds + random.normal(0, 500, seconds.shape))


def requests(per_second: float, churn: float = 0.0) -> Draw:
    """Leaks a block of 1009 bytes at random times, beside scatter of `churn` bytes."""

    def draw(random: np.random.Generator, seconds: Floats) -> Floats:
        counts = np.cumsum(random.poisson(per_second * np.diff(seconds, prepend=0.0)))
        return np.asarray(1009.0 * counts + random.normal(0, churn, seconds.shape))

    return draw


def uneven_requests(random: np.random.Generator, seconds: Floats) -> Floats:
    """Twenty a second in the mean, in each second at a rate of its own."""
    rates = random.exponential(20, int(seconds[-1]) + 1)
    leaked = np.concatenate([[0.0], np.cumsum(rates)])
    return np.asarray(1009 * np.interp(seconds, np.arange(len(leaked)), leaked))


def sampled(random: np.random.Generator, seconds: Floats) -> Floats:
    """A megabyte a second in blocks of 1009 bytes, of which one per 64 KiB is sampled and stands for the others."""
    taken = -np.expm1(-1009 / 65536)
    return np.asarray(1009 / taken * np.cumsum(random.poisson(taken * 1000 * np.diff(seconds, prepend=0.0))))


def judged(draw: Draw, seconds: Floats) -> list[Growth]:
    random = np.random.default_rng(41)
    space = np.maximum(np.stack([draw(random, seconds) for _ in range(DRAWS)], axis=1), 0)
    return judge_growth(Series(seconds, space, np.zeros(DRAWS), all_stays(space)))


@pytest.mark.parametrize("seconds", SECONDS, ids=["20 s", "30 s"])
@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (sawtooth(1 / 1.3), GIVEN_BACK | {Trend.BURST}),
        (sawtooth(1 / 2.5), GIVEN_BACK),
        (sawtooth(1 / 6), GIVEN_BACK),
        (full_cache(0.3), {Trend.PLATEAU}),
        (full_cache(0.6), {Trend.PLATEAU}),
        (random_keys, {Trend.PLATEAU}),
        (stops, {Trend.PLATEAU}),
    ],
    ids=lambda one: getattr(one, "__qualname__", "") if callable(one) else "",
)  # fmt: skip
def test_what_is_given_back(draw: Draw, expected: set[Trend], seconds: Floats) -> None:
    found = [one.trend for one in judged(draw, seconds)]
    assert sum(one in expected for one in found) >= 0.9 * DRAWS, {one: found.count(one) for one in found}


@pytest.mark.parametrize("seconds", SECONDS, ids=["20 s", "30 s"])
@pytest.mark.parametrize(
    ("draw", "rate"),
    [
        (starts_late, 3e4),
        (after_start_up, 3e4),
        (requests(1), 1009),
        (requests(10, churn=2e3), 10_090),
        (uneven_requests, 20_180),
        (sampled, 1_009_000),
    ],
    ids=["starts late", "after start-up", "one a second", "beside churn", "uneven requests", "sampled"],
)
def test_what_grows_and_the_true_rate_in_its_interval(draw: Draw, rate: float, seconds: Floats) -> None:
    """A random walk is not scatter: Sen's interval alone covers the rate in a third of the draws."""
    growing = [one for one in judged(draw, seconds) if one.trend is Trend.GROWS]
    assert len(growing) >= 0.9 * DRAWS
    assert sum(one.low <= rate <= one.high for one in growing) >= 0.88 * len(growing)


def test_interval_of_plain_scatter_stays_useful() -> None:
    """Twenty snapshots with scatter of a fifth of what grows in all: a tenth of the rate, not many times it."""
    seconds = SECONDS[0]
    growing = judged(lambda random, at: 1e6 + 3e4 * at + random.normal(0, 12e3, at.shape), seconds)
    halves = [(one.high - one.low) / 2 for one in growing if one.trend is Trend.GROWS]
    assert len(halves) == DRAWS
    assert np.median(halves) < 0.25 * 3e4


Pair = Callable[[np.random.Generator, Floats], tuple[Floats, Floats]]


def queue(come: float, go: float, leaked: float, oldest_first: bool = True) -> Pair:
    """Bytes held by a queue of 1009-byte blocks, and bytes that stayed. `come` and `go`: blocks per second, at random.

    The same stack also leaks so many a second. The blocks that go are the oldest, or any.
    """

    def draw(random: np.random.Generator, seconds: Floats) -> tuple[Floats, Floats]:
        end = seconds[-1]
        times = [random.uniform(0, end, random.poisson(rate * end)) for rate in (come, go)]
        comes = np.repeat([True, False], [len(one) for one in times])
        order = np.argsort(np.concatenate(times))
        moments, waiting, lengths = np.concatenate(times)[order], [0.0] * 20, []
        for moment, is_new in zip(moments.tolist(), comes[order].tolist(), strict=True):
            if is_new:
                waiting.append(moment)
            elif waiting:
                waiting.pop(0 if oldest_first else int(random.integers(len(waiting))))
            lengths.append(len(waiting))
        length = np.array(lengths)[np.searchsorted(moments, seconds, "right") - 1]
        lost = np.searchsorted(np.sort(random.uniform(0, end, random.poisson(leaked * end))), seconds)
        stayed = np.searchsorted(np.sort(waiting), seconds, "right")
        return 1009.0 * (length + lost), 1009.0 * (stayed + lost)

    return draw


def share_that_grows(draw: Pair, seconds: Floats) -> float:
    random = np.random.default_rng(43)
    drawn = [draw(random, seconds) for _ in range(DRAWS)]
    space, stayed = (np.stack(one, axis=1) for one in zip(*drawn, strict=True))
    found = judge_growth(Series(seconds, space, np.zeros(DRAWS), stayed))
    return sum(one.trend is Trend.GROWS for one in found) / DRAWS


@pytest.mark.parametrize("seconds", SECONDS, ids=["20 s", "30 s"])
@pytest.mark.parametrize("oldest_first", [True, False], ids=["oldest first", "any"])
def test_a_random_walk(seconds: Floats, oldest_first: bool) -> None:
    assert share_that_grows(queue(50, 50, 0, oldest_first), seconds) <= 0.12


@pytest.mark.parametrize("seconds", SECONDS, ids=["20 s", "30 s"])
@pytest.mark.parametrize("leaked", [50, 10], ids=["as many as come", "one for five"])
def test_leak_beside_a_queue(seconds: Floats, leaked: int) -> None:
    assert share_that_grows(queue(50, 50, leaked), seconds) >= 0.88


@pytest.mark.parametrize("seconds", SECONDS, ids=["20 s", "30 s"])
def test_backlog(seconds: Floats) -> None:
    """None of its blocks stays, but it grows by more than chance does."""
    assert share_that_grows(queue(65, 50, 0), seconds) >= 0.9
