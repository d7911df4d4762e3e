"""Growth of each stack over the snapshots of a session: of which kind. docs/use/growth.md has the rules."""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.growth_rate import (
    Z_95,
    Estimate,
    Floats,
    Instants,
    Rates,
    Series,
    growth_rates,
    held_at,
)
from memleak_android.host.profile.growth import Growth, Trend

INSTANTS_MIN = 5  # with fewer no order of the slopes is unlikely enough: 2/4! is 8 %, 2/5! is 2 %

RISE_MIN = 256  # bytes; less is no growth
RISE_SHARE_MIN = 0.01  # of what is held
ONSET_SHARE = 0.05  # of the whole rise: what had happened before it began
BURST_SHARE = 0.8  # of the whole rise in one step
BURST_TIME_SHARE = 0.5  # of the time, at most, for that step
FALL_SHARE_MAX = 0.5  # of the whole rise, freed in between
CERTAIN_SHARE = 0.5  # of the rate: if its interval stays above that, any fall in between is accepted
LATE_SHARE_MIN = 0.25  # of its rate, in the last third
FRESH_SHARE_MIN = 0.25  # of the rise since the onset, beyond all that was held before it
LINEAR_SHARE_MIN = 0.5  # of the rise in the third quarter, in the last one
START_UP_SHARE = 0.3  # of the whole rise in one step
START_UP_TIME_SHARE = 1 / 3  # of the time, within which it is
LONG_START_UP = 3  # times what the second half rose by, which then has to be even
EVEN_SHARE = 0.35  # of the second half's rise, in each half of it
EVEN_STEP_MAX = 0.34  # of it in one step
RISES_SHARE_MIN = (
    0.01  # of the most that was ever held, by new maxima of the last quarter without their largest step
)
RISES_STEPS = 0.75  # of the last quarter's instants, that are new maxima
ONSET_TIME_SHARE = 0.1  # of the time: an onset after it is late
SURE_SHARE = 0.1  # of the rate, which its interval has to stay above, where the survivors tell it
SURE_SHARE_OF_HELD = 0.3  # where they do not
FADES_BEFORE = 0.3  # of the time since the onset
STAIRS_MIN = 3  # rises of a staircase
MANY_STAIRS = 5
ALIKE = 2.2  # the largest over the smallest: two intervals between instants over one, which differ a little
SWELLS = 1.45  # a stair over the one before: buffers that grow by half or by two
PAUSES_MIN = 0.2  # of the steps from the first stair to the last
STAIR_PATIENCE = 2.5  # times the longest wait between its rises: then it has ended
ALIKE_PATIENCE = 2  # times the mean wait between equal ones

_SITES_AT_ONCE = 512


def judge_growth(series: Series) -> list[Growth]:
    """The growth of each stack. Needs at least INSTANTS_MIN instants."""
    found: list[Growth] = []
    for first in range(0, series.space.shape[1], _SITES_AT_ONCE):
        part = slice(first, first + _SITES_AT_ONCE)
        found += _judge(
            Series(series.seconds, series.space[:, part], series.stderr[part], series.stayed[:, part])
        )
    return found


def _judge(series: Series) -> list[Growth]:
    seconds, space = series.seconds, series.space
    onset = _onset(seconds, space)
    estimate = growth_rates(series, onset)
    trends, climbs = _trends(series, onset, estimate)
    onset = np.where(climbs, 0, onset)
    begun, rates = seconds[onset], _by_stairs(series, estimate.rates, climbs)
    rise = space[-1] - space[onset, np.arange(space.shape[1])]
    return [
        Growth(Trend(trend), *numbers, round(since * 1e9), round(by))
        for trend, numbers, since, by in zip(
            trends,
            zip(rates.rate.tolist(), rates.low.tolist(), rates.high.tolist(), strict=True),
            begun.tolist(),
            rise.tolist(),
            strict=True,
        )
    ]


def _onset(seconds: Floats, space: Floats) -> Instants:
    """(n,) the last instant at which at most ONSET_SHARE of the rise had happened, leaving INSTANTS_MIN of them.

    The middle of the time where the last third has next to nothing of the rise, or the second half rose evenly and by far less
    than the first: what filled up or started up before is not part of what may still grow.
    """
    rise = np.maximum(space[-1] - space[0], 0)
    quiet = space <= space[0] + ONSET_SHARE * rise
    last = len(space) - 1 - np.argmax(quiet[::-1], axis=0)
    onset = np.asarray(np.minimum(last, len(space) - INSTANTS_MIN))
    onset = np.maximum(onset, _end_of_start_up(seconds, space, rise))
    is_flat = _is_flat_late(_rise_of_last(1 / 3, seconds, space, onset), rise)
    middle = min(int(np.searchsorted(seconds, (seconds[0] + seconds[-1]) / 2)), len(space) - INSTANTS_MIN)
    is_flat |= _starts_up_until(middle, seconds, space)
    return np.asarray(np.where(is_flat, np.maximum(onset, middle), onset))


def _starts_up_until(middle: int, seconds: Floats, space: Floats) -> NDArray[np.bool_]:
    rise = space[-1] - space[middle]
    late = _rise_of_last(1 / 2, seconds, space, np.full(space.shape[1], middle))
    is_even = (late >= EVEN_SHARE * rise) & (late <= (1 - EVEN_SHARE) * rise)
    is_even &= np.diff(space[middle:], axis=0).max(axis=0) <= EVEN_STEP_MAX * rise
    return np.asarray((rise > 0) & is_even & (space[middle] - space[0] >= LONG_START_UP * rise))


def _end_of_start_up(seconds: Floats, space: Floats, rise: Floats) -> Instants:
    """(n,) the instant after a step early on that has much of the rise and stays; 0 = there is none."""
    steps, columns = np.diff(space, axis=0), np.arange(space.shape[1])
    last = int(
        np.searchsorted(seconds, seconds[0] + START_UP_TIME_SHARE * (seconds[-1] - seconds[0]), "right")
    )
    early = steps[: max(min(last - 1, len(space) - 1 - INSTANTS_MIN), 1)]
    largest = np.argmax(early, axis=0)
    step = early[largest, columns]
    after = np.where(np.arange(len(space))[:, None] > largest, space, np.inf).min(axis=0)
    stays = after - space[largest, columns] >= BURST_SHARE * step
    return np.asarray(np.where(stays & (step >= START_UP_SHARE * rise), largest + 1, 0))


def _by_stairs(series: Series, rates: Rates, climbs: NDArray[np.bool_]) -> Rates:
    """Most slopes of a staircase are 0: its rate is the whole rise over the time, plus or minus a stair."""
    seconds, space = series.seconds, series.space
    span = seconds[-1] - seconds[0]
    rise, stair = space[-1] - space[0], np.diff(space, axis=0).max(axis=0)
    return Rates(
        np.where(climbs, rise / span, rates.rate),
        np.where(climbs, np.maximum(rise - stair, 0) / span, rates.low),
        np.where(climbs, (rise + stair) / span, rates.high),
    )


def _trends(series: Series, onset: Instants, estimate: Estimate) -> tuple[list[str], NDArray[np.bool_]]:
    """The names of the trends, and which stacks grow by stairs alone."""
    seconds, space, rates = series.seconds, series.space, estimate.of_held
    rise = space[-1] - space[0]
    since = space[-1] - space[onset, np.arange(space.shape[1])]
    matters, matters_since = _matters(rise, space[-1]), _matters(since, space[-1])
    keeps = (np.maximum.accumulate(space) - space).max(axis=0) <= FALL_SHARE_MAX * rise
    burst = _is_burst(seconds, space, rise) & keeps
    late = _rise_of_last(1 / 3, seconds, space, onset)
    is_late = late >= LATE_SHARE_MIN * rates.rate * (seconds[-1] - seconds[onset]) / 3
    is_flat = _is_flat_late(late, rise)
    goes_on = is_flat & matters_since & _is_linear_late(seconds, space, onset)
    is_late &= ~is_flat | goes_on
    certain = rates.low >= CERTAIN_SHARE * rates.rate
    is_sure = (rates.low > 0) & ~_may_be_chance(series, onset, estimate)
    steadily = is_sure & (keeps | certain) & is_late & _is_fresh(space, onset)
    burst &= ~(steadily & goes_on)
    stairs, ended = _stairs(seconds, space)
    stairs &= rise > Z_95 * series.stderr
    steadily &= ~ended
    found = np.select(
        [
            ~matters,
            burst,
            steadily | stairs,
            _still_rises(seconds, space) & ~ended,
            (~is_late | is_flat | ended) & keeps,
        ],
        [Trend.STEADY, Trend.BURST, Trend.GROWS, Trend.RISES, Trend.PLATEAU],
        Trend.STEADY,
    )
    return [str(trend) for trend in found.tolist()], (found == Trend.GROWS) & ~steadily


def _may_be_chance(series: Series, onset: Instants, estimate: Estimate) -> NDArray[np.bool_]:
    """The interval reaches down to little: a rise that chance makes, or one that fades.

    A late onset was chosen where a walk is lowest, and growth of which no block stays may be a queue's: both must be surer.
    """
    seconds, space, rates = series.seconds, series.space, estimate.rates
    is_late = seconds[onset] - seconds[0] > ONSET_TIME_SHARE * (seconds[-1] - seconds[0])
    needed = np.where(estimate.explains, SURE_SHARE, SURE_SHARE_OF_HELD)
    needed = np.where(is_late, CERTAIN_SHARE, needed)
    of_rise = np.where(estimate.explains, series.stayed, space)
    return np.asarray((rates.low < needed * rates.rate) | _fades(seconds, of_rise, onset))


def _fades(seconds: Floats, space: Floats, onset: Instants) -> NDArray[np.bool_]:
    """The centroid of the new maxima lies early: of an even rise it is at 0.5 of the time, of √t at 1/3, of log t below."""
    rises = np.diff(np.maximum.accumulate(space, axis=0), axis=0) * (
        np.arange(1, len(space))[:, None] > onset
    )
    middles = (seconds[1:] + seconds[:-1])[:, None] / 2
    centroid = (rises * middles).sum(axis=0) / np.maximum(rises.sum(axis=0), 1)
    return np.asarray(centroid - seconds[onset] < FADES_BEFORE * (seconds[-1] - seconds[onset]))


def _matters(rise: Floats, held: Floats) -> NDArray[np.bool_]:
    return np.asarray((rise >= RISE_MIN) & (rise >= RISE_SHARE_MIN * held))


def _is_fresh(space: Floats, onset: Instants) -> NDArray[np.bool_]:
    """The end is above all that was held before the onset: a sawtooth or queue that refills does not grow."""
    before = np.arange(len(space))[:, None] <= onset
    most = np.where(before, space, 0).max(axis=0)
    rise = space[-1] - space[onset, np.arange(space.shape[1])]
    return np.asarray(space[-1] - most >= FRESH_SHARE_MIN * rise)


def _is_linear_late(seconds: Floats, space: Floats, onset: Instants) -> NDArray[np.bool_]:
    """The second half since the onset rose about as much as the first: it is not filling up."""
    late = _rise_of_last(1 / 2, seconds, space, onset)
    early = space[-1] - space[onset, np.arange(space.shape[1])] - late
    return np.asarray(late >= LINEAR_SHARE_MIN * early)


def _is_burst(seconds: Floats, space: Floats, rise: Floats) -> NDArray[np.bool_]:
    """Nearly all of the rise between two neighbouring instants that make up little of the time."""
    steps = np.diff(space, axis=0)
    largest = np.argmax(steps, axis=0)
    short = np.diff(seconds)[largest] <= BURST_TIME_SHARE * (seconds[-1] - seconds[0])
    return np.asarray((steps.max(axis=0) >= BURST_SHARE * rise) & short)


def _rise_of_last(share: float, seconds: Floats, space: Floats, onset: Instants) -> Floats:
    """(n,) bytes of rise in the last share of the time since the onset."""
    at = seconds[-1] - (seconds[-1] - seconds[onset]) * share
    return np.asarray(space[-1] - held_at(seconds, space, at[None])[0])


def _is_flat_late(late: Floats, rise: Floats) -> NDArray[np.bool_]:
    return np.asarray(late <= LATE_SHARE_MIN * rise / 3)


def _still_rises(seconds: Floats, space: Floats) -> NDArray[np.bool_]:
    """Nearly each instant of the last quarter holds more than any before it."""
    last = int(np.searchsorted(seconds, seconds[-1] - (seconds[-1] - seconds[0]) / 4))
    most = np.maximum.accumulate(space, axis=0)
    steps = np.diff(most[last - 1 :], axis=0)
    rise = steps.sum(axis=0) - steps.max(axis=0)
    return np.asarray(
        ((steps > 0).sum(axis=0) >= RISES_STEPS * len(steps)) & (rise >= RISES_SHARE_MIN * most[-1])
    )


def _stairs(seconds: Floats, space: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which columns never fall and rise by stairs that go on, and which have ended.

    They go on if the last stair is neither longer ago than usual nor much smaller. Only equal stairs with pauses between them
    are known to have ended: what came evenly may come again. One that takes several instants counts as one of them.
    """
    alike, others, is_new = _kinds_of_stairs(seconds, space)
    in_runs, _, is_new_run = _kinds_of_stairs(seconds, _ends_of_rises(space))
    in_runs &= (np.diff(space, axis=0) >= 0).all(axis=0) & ~alike
    ended = alike & _has_pauses(space) & ~is_new | in_runs & ~is_new_run
    return ((alike | others) & is_new | in_runs & is_new_run) & ~ended, ended


def _has_pauses(space: Floats) -> NDArray[np.bool_]:
    """Between the first rise and the last, a fifth of the steps brings none."""
    rises = np.diff(space, axis=0) > 0
    since_first = np.maximum.accumulate(rises, axis=0)
    until_last = np.maximum.accumulate(rises[::-1], axis=0)[::-1]
    between = since_first & until_last
    return np.asarray((between & ~rises).sum(axis=0) >= PAUSES_MIN * between.sum(axis=0))


def _kinds_of_stairs(
    seconds: Floats, space: Floats
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Stairs of about one size and distance; the last ones ever larger, or many of which none is large; new."""
    steps = np.diff(space, axis=0)
    rises = steps > 0
    n, columns = rises.sum(axis=0), np.arange(space.shape[1])
    earlier = np.maximum.accumulate(np.where(rises, np.arange(len(steps))[:, None], -1), axis=0)
    earlier = np.vstack([np.full((1, len(n)), -1), earlier[:-1]])  # each rise's predecessor
    follows = rises & (earlier >= 0)
    waits = np.where(rises, seconds[1:, None] - seconds[np.where(follows, earlier + 1, 0)], 0)
    longest, shortest = waits.max(axis=0), np.where(follows, waits, np.inf).min(axis=0)
    largest, smallest = steps.max(axis=0), np.where(rises, steps, np.inf).min(axis=0)
    alike = (largest <= ALIKE * smallest) & (np.where(follows, waits, 0).max(axis=0) <= ALIKE * shortest)
    is_of_last = np.cumsum(follows[::-1], axis=0)[::-1] < STAIRS_MIN
    swells = np.where(follows & is_of_last, steps >= SWELLS * steps[earlier, columns], True).all(axis=0)
    many = (n >= MANY_STAIRS) & (largest <= (space[-1] - space[0]) / 4)
    many &= ~_fades(seconds, space, np.zeros(len(n), np.int64))
    last = len(steps) - 1 - np.argmax(rises[::-1], axis=0)
    usual = np.sort(np.where(rises, steps, np.inf), axis=0)[np.maximum(n - 1, 0) // 2, columns]
    mean = np.where(follows, waits, 0).sum(axis=0) / np.maximum(n - 1, 1)
    patience = np.where(alike, ALIKE_PATIENCE * mean, STAIR_PATIENCE * longest)
    is_new = (seconds[-1] - seconds[1:][last] <= patience) & (steps[last, columns] >= LATE_SHARE_MIN * usual)
    climbs = (steps >= 0).all(axis=0) & (n >= STAIRS_MIN)
    return climbs & alike, climbs & (swells | many), is_new


def _ends_of_rises(space: Floats) -> Floats:
    """As if what rises over neighbouring instants came at the last of them."""
    rises = np.diff(space, axis=0) > 0
    ends = rises & ~np.vstack([rises[1:], np.zeros_like(rises[:1])])
    return np.vstack([space[:1], np.maximum.accumulate(np.where(ends, space[1:], space[:1]), axis=0)])
