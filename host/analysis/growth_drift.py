"""How far a series strays from its own rate by more than scatter: what makes its rate less sure than Sen's interval says.

Sen's interval takes what lies beside the line for independent from instant to instant: the churn of a busy stack. What
requests bring at random times adds up instead (a random walk: its increments are independent, not its levels), and so
does a rate that changes. Both are told apart by how much the differences over short and over long lags vary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LAG_SHARE = 4  # the long lag is a quarter of the instants
SLOPE_VARIANCE = 1.2  # of a line through a random walk, over σ²/T (least squares: 6/5)
STUDENT_95 = 2.78  # four quarters are four degrees of freedom

Floats = NDArray[np.float64]


def drift(seconds: Floats, space: Floats, onset: NDArray[np.int64], rate: Floats) -> Floats:
    """(n,) bytes per second: half of the 95 % interval of each column's rate that its wandering alone makes.

    seconds: (t,); space: (t, n) bytes; each column counts from its instant `onset` on, where at least two remain;
    rate: (n,) bytes per second, of the line that it strays from.
    """
    beside = space - rate * seconds[:, None]
    span = seconds[-1] - seconds[onset]
    lag = np.maximum((len(seconds) - onset) // LAG_SHARE, 2)
    short, short_s = _variation(seconds, beside, onset, np.ones_like(lag), span)
    long, long_s = _variation(seconds, beside, onset, lag, span)
    scatter_alone = np.maximum(long_s - short_s, 1e-9)
    variance_per_s = np.maximum(long - short, 0) / scatter_alone
    return np.asarray(STUDENT_95 * np.sqrt(SLOPE_VARIANCE * variance_per_s / span))


def _variation(
    seconds: Floats, beside: Floats, onset: NDArray[np.int64], lag: NDArray[np.int64], span: Floats
) -> tuple[Floats, Floats]:
    """(n,) each: the mean square of the differences over `lag` instants, and what of it a random walk has by σ².

    A line that was drawn through the walk takes a part of a long difference away: of h seconds h(1 - h/T) are left.
    """
    squares, expected, counts = (np.zeros(beside.shape[1]) for _ in range(3))
    for each in np.unique(lag).tolist():
        columns = lag == each
        after = np.arange(each, len(seconds))
        counted = after[:, None] - each >= onset[columns]
        time_s = (seconds[after] - seconds[after - each])[:, None]
        steps = beside[after][:, columns] - beside[after - each][:, columns]
        squares[columns] = (steps**2 * counted).sum(axis=0)
        expected[columns] = (time_s * np.maximum(1 - time_s / span[columns], 0) * counted).sum(axis=0)
        counts[columns] = counted.sum(axis=0)
    counts = np.maximum(counts, 1)
    return squares / counts, expected / counts
