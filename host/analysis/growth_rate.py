"""How fast memory grows, and how sure that is.

Two sources. What is held at each snapshot: the median of the slopes between all pairs of instants (Theil–Sen; Sen, JASA 63,
1968), its interval by the ranks of these slopes and by drift. And what stayed until the end, which the blocks' own times of
birth tell without scatter: its mean rate, with the interval of batch means (Law, Simulation Modeling and Analysis, 9.5.3).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.96
Floats = NDArray[np.float64]
Instants = NDArray[np.int64]

LAG_SHARE = 4  # the long lag is a quarter of the instants
SLOPE_VARIANCE = 1.2  # of a line through a random walk, over σ²/T (least squares: 6/5)
STUDENT_95 = 2.78  # four quarters are four degrees of freedom
STUDENT_99 = 4.60
BATCHES = 8
BATCH_STUDENT = 2.5  # 2.36 for eight batches; a little more where a batch has few instants
FREED_LITTLE = 0.02  # of the rise: then all that is held counts as staying
SETTLED_SHARE = 0.75  # of the time since the onset: what came later may still go
EXPLAINED_MIN = 0.7  # of the rise, by what stayed
TURNOVER_MAX = 1.3  # times the rate of held bytes: survivors that come faster replace blocks, and add none


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
class Rates:
    """(n,) bytes per second each, with the ends of the 95 % interval."""

    rate: Floats
    low: Floats
    high: Floats

    def wider(self, half: Floats) -> "Rates":
        """With half an interval of another source, as independent errors add."""
        below, above = np.hypot(self.rate - self.low, half), np.hypot(self.high - self.rate, half)
        return Rates(self.rate, self.rate - below, self.rate + above)

    def where(self, chosen: NDArray[np.bool_], other: "Rates") -> "Rates":
        """Its own of `chosen`, the other's elsewhere."""
        names = ("rate", "low", "high")
        return Rates(*(np.where(chosen, getattr(self, name), getattr(other, name)) for name in names))


@dataclass(frozen=True, slots=True)
class Estimate:
    """rates: the best there are. of_held: those of what is held, by scatter alone. explains: (n,) `rates` are the survivors'."""

    rates: Rates
    of_held: Rates
    explains: NDArray[np.bool_]


def growth_rates(series: Series, onset: Instants) -> Estimate:
    """Of each column since its onset.

    Where the survivors explain the rise they give the rate: queues and churn beside a leak scatter what is held, not them.
    Elsewhere (a list that moves as it grows, a backlog) the rate is of what is held, with the interval that chance needs
    in one of a hundred.
    """
    seconds, space = series.seconds, series.space
    sen = theil_sen(seconds, space, onset)
    by_drift = drift(seconds, space, onset, sen.rate)
    sampling = Z_95 * series.stderr / (seconds[-1] - seconds[onset])
    stayed = _rates_of_survivors(series, onset)
    rise = space[-1] - space[onset, np.arange(space.shape[1])]
    explains = stayed.rate * (seconds[-1] - seconds[onset]) >= EXPLAINED_MIN * np.maximum(rise, 1)
    explains &= stayed.rate <= np.maximum(sen.wider(by_drift).high, TURNOVER_MAX * sen.rate)
    by_batches = _batch_means(seconds, space, onset, np.full_like(onset, len(seconds) - 1))
    by_chance = np.minimum(STUDENT_99 / STUDENT_95 * by_drift, by_batches.high - by_batches.rate)
    held = sen.wider(np.hypot(sampling, by_chance))
    return Estimate(stayed.wider(sampling).where(explains, held), sen.wider(sampling), explains)


def _rates_of_survivors(series: Series, onset: Instants) -> Rates:
    """Up to the time after which blocks may still go; where next to nothing is freed, up to the end."""
    seconds, space, stayed = series.seconds, series.space, series.stayed
    columns = np.arange(space.shape[1])
    freed = np.where(np.arange(len(seconds))[:, None] >= onset, space - stayed, 0)
    rise = np.maximum(space[-1] - space[onset, columns], 1)
    is_kept = freed.max(axis=0) - freed[onset, columns] <= FREED_LITTLE * rise
    settled = np.searchsorted(seconds, seconds[onset] + SETTLED_SHARE * (seconds[-1] - seconds[onset]))
    last = len(seconds) - 1
    return _batch_means(seconds, stayed, onset, np.where(is_kept, last, np.clip(settled, onset + 3, last)))


def _batch_means(seconds: Floats, space: Floats, begin: Instants, end: Instants) -> Rates:
    """The mean rate from instant `begin` to `end`, its interval by the scatter of the rates of BATCHES equal times."""
    span = seconds[end] - seconds[begin]
    edges = seconds[begin] + span * np.linspace(0, 1, BATCHES + 1)[:, None]
    rises = np.diff(held_at(seconds, space, edges), axis=0)
    mean = rises.mean(axis=0)
    variance = ((rises - mean) ** 2).sum(axis=0) / (BATCHES - 1)
    rate, half = BATCHES * mean / span, BATCH_STUDENT * np.sqrt(BATCHES * variance) / span
    return Rates(rate, rate - half, rate + half)


def held_at(seconds: Floats, space: Floats, at: Floats) -> Floats:
    """(k, n) bytes of each column at its times `at` (k, n); linear between two instants."""
    after = np.clip(np.searchsorted(seconds, at), 1, len(seconds) - 1)
    part = (at - seconds[after - 1]) / (seconds[after] - seconds[after - 1])
    columns = np.arange(space.shape[1])
    return np.asarray(space[after - 1, columns] * (1 - part) + space[after, columns] * part)


def theil_sen(seconds: Floats, space: Floats, onset: Instants) -> Rates:
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
    return Rates(middle, slopes[rank - 1, columns], slopes[n - rank, columns])


def drift(seconds: Floats, space: Floats, onset: Instants, rate: Floats) -> Floats:
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
    seconds: Floats, residual: Floats, onset: Instants, lag: Instants, span: Floats
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
