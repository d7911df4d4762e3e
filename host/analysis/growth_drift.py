"""Drift: deviation from the linear rate beyond random scatter. It widens Sen's confidence interval.

Sen's interval takes residuals as independent from instant to instant, like the churn of a busy stack. Requests at random
times add up instead (a random walk: its increments are independent, not its levels), and so does a rate that changes.
Drift shows in the variance of differences over long lags compared with short lags.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LAG_SHARE = 4  # the long lag is a quarter of the instants
SLOPE_VARIANCE = 1.2  # of a line through a random walk, over σ²/T (least squares: 6/5)
STUDENT_95 = 2.78  # four quarters are four degrees of freedom

Floats = NDArray[np.float64]


def drift(seconds: Floats, space: Floats, onset: NDArray[np.int64], rate: Floats) -> Floats:
    """(n,) bytes per second: half of the 95 % interval of each column's rate due to drift alone.

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
