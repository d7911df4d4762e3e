"""Growth of each stack over the snapshots of a session: how fast, how sure, and of which kind.

Rates are Theil–Sen estimates (the median of the slopes between all pairs of instants; Sen, JASA 63, 1968) with Sen's
95 % interval by the ranks of these slopes. docs/use/growth.md has the rules that make a trend of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.profile.growth import Growth, Trend

INSTANTS_MIN = 5  # with fewer no order of the slopes is unlikely enough: 2/4! is 8 %, 2/5! is 2 %
Z_95 = 1.96

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
STAYS_SHARE_MIN = 0.5  # of what was allocated in the first half, still held at the end
STAIRS_MIN = 3  # rises of a staircase
STAIR_PATIENCE = 2.5  # times the longest wait between its rises: then it has ended

_SITES_AT_ONCE = 512

Floats = NDArray[np.float64]
LAG_SHARE = 4  # the long lag is a quarter of the instants
SLOPE_VARIANCE = 1.2  # of a line through a random walk, over σ²/T (least squares: 6/5)
STUDENT_95 = 2.78  # four quarters are four degrees of freedom


@dataclass(frozen=True, slots=True)
class Series:
    """n stacks at t instants.

    seconds: (t,) since the session's start, rising. space: (t, n) bytes held. stderr: (n,) of the difference
    between the last and the first instant, in bytes; 0 where every allocation was counted. stayed: (t, n) bytes held at the
    last instant by blocks that existed at each instant, never falling.
    """

    seconds: Floats
    space: Floats
    stderr: Floats
    stayed: Floats


@dataclass(frozen=True, slots=True)
class _Rates:
    """(n,) bytes per second each, with the ends of the 95 % interval."""

    rate: Floats
    low: Floats
    high: Floats


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
    begun = seconds[onset]
    sen = theil_sen(seconds, space, onset)
    sampling = Z_95 * series.stderr / (seconds[-1] - begun)
    rates = _wider(sen, np.hypot(sampling, drift(seconds, space, onset, sen.rate)))
    # The trend test uses the scatter only, not the drift. But if the drift alone could explain the rate, the stack counts as
    # growing only when its early blocks are still allocated.
    by_chance = (rates.low <= 0) & ~_stays(series, onset)
    trends, climbs = _trends(series, onset, _wider(sen, sampling), by_chance)
    onset = np.where(climbs, 0, onset)
    begun, rates = seconds[onset], _by_stairs(series, rates, climbs)
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


def _onset(seconds: Floats, space: Floats) -> NDArray[np.int64]:
    """(n,) the last instant at which at most ONSET_SHARE of the rise had happened, leaving INSTANTS_MIN of them.

    The middle of the time where the last third has next to nothing of the rise: what filled up or was allocated at once
    before is not part of what may still grow.
    """
    rise = np.maximum(space[-1] - space[0], 0)
    quiet = space <= space[0] + ONSET_SHARE * rise
    last = len(space) - 1 - np.argmax(quiet[::-1], axis=0)
    onset = np.asarray(np.minimum(last, len(space) - INSTANTS_MIN))
    is_flat = _is_flat_late(_rise_of_last(1 / 3, seconds, space, onset), rise)
    middle = min(int(np.searchsorted(seconds, (seconds[0] + seconds[-1]) / 2)), len(space) - INSTANTS_MIN)
    return np.where(is_flat, np.maximum(onset, middle), onset)


def theil_sen(seconds: Floats, space: Floats, onset: NDArray[np.int64]) -> _Rates:
    """The rate of each column of `space` (t, n) from its own instant `onset` on; at least two instants remain."""
    before, after = np.triu_indices(len(seconds), 1)
    slopes = (space[after] - space[before]) / (seconds[after] - seconds[before])[:, None]
    slopes[before[:, None] < onset] = np.inf  # sorted behind those that count
    slopes.sort(axis=0)
    t = (len(seconds) - onset).astype(np.float64)
    n = t * (t - 1) / 2
    width = Z_95 * np.sqrt(t * (t - 1) * (2 * t + 5) / 18)
    rank = np.maximum(np.floor((n - width) / 2), 1).astype(np.int64)  # Sen's, counted from 1
    n = n.astype(np.int64)
    columns = np.arange(space.shape[1])
    middle = (slopes[(n - 1) // 2, columns] + slopes[n // 2, columns]) / 2
    return _Rates(middle, slopes[rank - 1, columns], slopes[n - rank, columns])


def _wider(rates: _Rates, half: Floats) -> _Rates:
    """Intervals widened by half an interval of another source, as independent errors add."""
    below, above = np.hypot(rates.rate - rates.low, half), np.hypot(rates.high - rates.rate, half)
    return _Rates(rates.rate, rates.rate - below, rates.rate + above)


def _by_stairs(series: Series, rates: _Rates, climbs: NDArray[np.bool_]) -> _Rates:
    """Most slopes of a staircase are 0: its rate is the whole rise over the time, plus or minus a stair."""
    seconds, space = series.seconds, series.space
    span = seconds[-1] - seconds[0]
    rise, stair = space[-1] - space[0], np.diff(space, axis=0).max(axis=0)
    return _Rates(
        np.where(climbs, rise / span, rates.rate),
        np.where(climbs, np.maximum(rise - stair, 0) / span, rates.low),
        np.where(climbs, (rise + stair) / span, rates.high),
    )


def _trends(
    series: Series, onset: NDArray[np.int64], rates: _Rates, by_chance: NDArray[np.bool_]
) -> tuple[list[str], NDArray[np.bool_]]:
    """The names of the trends, and which stacks grow by stairs alone."""
    seconds, space = series.seconds, series.space
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
    steadily = (rates.low > 0) & (keeps | certain) & is_late & _is_fresh(space, onset) & ~by_chance
    burst &= ~(steadily & goes_on)
    stairs = _is_staircase(seconds, space) & (rise > Z_95 * series.stderr)
    found = np.select(
        [~matters, burst, steadily | stairs, (~is_late | is_flat) & keeps],
        [Trend.STEADY, Trend.BURST, Trend.GROWS, Trend.PLATEAU],
        Trend.STEADY,
    )
    return [str(trend) for trend in found.tolist()], (found == Trend.GROWS) & ~steadily


def _stays(series: Series, onset: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Enough of what was allocated in the first half since the onset is still held to explain its rise: not a queue."""
    seconds, columns = series.seconds, np.arange(series.space.shape[1])
    middle = np.searchsorted(seconds, (seconds[onset] + seconds[-1]) / 2)
    came, stayed = (of[middle, columns] - of[onset, columns] for of in (series.space, series.stayed))
    return np.asarray(stayed >= STAYS_SHARE_MIN * came)


def _matters(rise: Floats, held: Floats) -> NDArray[np.bool_]:
    return np.asarray((rise >= RISE_MIN) & (rise >= RISE_SHARE_MIN * held))


def _is_fresh(space: Floats, onset: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The end is above all that was held before the onset: a sawtooth or queue that refills does not grow."""
    before = np.arange(len(space))[:, None] <= onset
    most = np.where(before, space, 0).max(axis=0)
    rise = space[-1] - space[onset, np.arange(space.shape[1])]
    return np.asarray(space[-1] - most >= FRESH_SHARE_MIN * rise)


def _is_linear_late(seconds: Floats, space: Floats, onset: NDArray[np.int64]) -> NDArray[np.bool_]:
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


def _rise_of_last(share: float, seconds: Floats, space: Floats, onset: NDArray[np.int64]) -> Floats:
    """(n,) bytes of rise in the last share of the time since the onset; linear between two instants."""
    at = seconds[-1] - (seconds[-1] - seconds[onset]) * share
    after = np.clip(np.searchsorted(seconds, at), 1, len(seconds) - 1)
    columns = np.arange(space.shape[1])
    part = (at - seconds[after - 1]) / (seconds[after] - seconds[after - 1])
    then = space[after - 1, columns] * (1 - part) + space[after, columns] * part
    return np.asarray(space[-1] - then)


def _is_flat_late(late: Floats, rise: Floats) -> NDArray[np.bool_]:
    return np.asarray(late <= LATE_SHARE_MIN * rise / 3)


def _is_staircase(seconds: Floats, space: Floats) -> NDArray[np.bool_]:
    """Never falls, rises in at least STAIRS_MIN steps; the last is neither longer ago than usual nor much smaller."""
    steps = np.diff(space, axis=0)
    rises = steps > 0
    times = np.where(rises, seconds[1:, None], seconds[0])
    latest = np.maximum.accumulate(times)
    waits = np.where(rises[1:], seconds[2:, None] - latest[:-1], 0)
    pause = seconds[-1] - latest[-1]
    enough = rises.sum(axis=0) >= STAIRS_MIN
    last = steps[len(steps) - 1 - np.argmax(rises[::-1], axis=0), np.arange(steps.shape[1])]
    sorted_steps = np.sort(np.where(rises, steps, np.inf), axis=0)  # rises first
    usual = sorted_steps[(rises.sum(axis=0) - 1) // 2 % len(steps), np.arange(steps.shape[1])]
    enough &= last >= LATE_SHARE_MIN * usual
    return np.asarray(enough & (steps >= 0).all(axis=0) & (pause <= STAIR_PATIENCE * waits.max(axis=0)))


def drift(seconds: Floats, space: Floats, onset: NDArray[np.int64], rate: Floats) -> Floats:
    """(n,) bytes per second: half of the 95 % interval of each column's rate due to drift alone.

    Drift is deviation from the linear rate beyond random scatter. Sen's interval takes residuals as independent from instant
    to instant, like the churn of a busy stack. Requests at random times add up instead (a random walk: its increments are
    independent, not its levels), and so does a rate that changes. Drift shows in the variance of differences over long lags
    compared with short lags.

    seconds: (t,); space: (t, n) bytes; each column counts from its instant `onset` on, where at least two remain;
    rate: (n,) bytes per second, of the fitted line.
    """
    residual = space - rate * seconds[:, None]
    span = seconds[-1] - seconds[onset]
    lag = np.maximum((len(seconds) - onset) // LAG_SHARE, 2)
    short, short_s = _variation(seconds, residual, onset, np.ones_like(lag), span)
    long, long_s = _variation(seconds, residual, onset, lag, span)
    scatter_alone = np.maximum(long_s - short_s, 1e-9)
    variance_per_s = np.maximum(long - short, 0) / scatter_alone
    return np.asarray(STUDENT_95 * np.sqrt(SLOPE_VARIANCE * variance_per_s / span))


def _variation(
    seconds: Floats, residual: Floats, onset: NDArray[np.int64], lag: NDArray[np.int64], span: Floats
) -> tuple[Floats, Floats]:
    """(n,) each: the mean square of the differences over `lag` instants, and its expectation for a random walk, over σ².

    The line fitted through the walk removes a part of a long difference: of h seconds h(1 - h/T) remain.
    """
    squares, expected, counts = (np.zeros(residual.shape[1]) for _ in range(3))
    for each in np.unique(lag).tolist():
        columns = lag == each
        after = np.arange(each, len(seconds))
        counted = after[:, None] - each >= onset[columns]
        time_s = (seconds[after] - seconds[after - each])[:, None]
        differences = residual[after][:, columns] - residual[after - each][:, columns]
        squares[columns] = (differences**2 * counted).sum(axis=0)
        expected[columns] = (time_s * np.maximum(1 - time_s / span[columns], 0) * counted).sum(axis=0)
        counts[columns] = counted.sum(axis=0)
    counts = np.maximum(counts, 1)
    return squares / counts, expected / counts
