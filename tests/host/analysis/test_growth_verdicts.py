"""How often trend, rate and interval are right: many draws of each behaviour, at the snapshots that sessions take."""

from collections.abc import Callable

import numpy as np
import pytest

from memleak_android.host.analysis.growth_rate import Series
from memleak_android.host.analysis.growth_trend import judge_growth
from memleak_android.host.profile.growth import Growth, Trend
from tests.host.analysis.test_growth_trend import all_stays
from tests.support.builders.behaviours import LEAKS, NO_LEAKS, Behaviour, queue

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
