"""What the kinds of blocks (host/analysis/reachability.py) amount to, by stack and in all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.profile import LeakKind, LeakSum

_KINDS = tuple(LeakKind)


def leaks_by_stack(
    survivors: Survivors, stacks: NDArray[np.int64], shown: NDArray[np.bool_]
) -> dict[int, tuple[LeakSum, ...]]:
    """Of the `shown` blocks (by block) by the number of their stack (stacks: by block, negative = none)."""
    kinds = survivors.leak_kinds
    if kinds is None:
        return {}
    chosen = np.flatnonzero(shown & (kinds >= 0) & (stacks >= 0))
    groups, number = np.unique(stacks[chosen] * len(_KINDS) + kinds[chosen], return_inverse=True)
    size = survivors.snapshot.live["size"][chosen].astype(np.float64)
    space, objects = np.bincount(number, size, len(groups)), np.bincount(number, minlength=len(groups))
    result: dict[int, tuple[LeakSum, ...]] = {}
    for group, held, count in zip(groups.tolist(), space.tolist(), objects.tolist(), strict=True):
        stack, kind = divmod(group, len(_KINDS))
        result[stack] = (*result.get(stack, ()), LeakSum(_KINDS[kind], round(held), count))
    return result


def leaks_in_all(survivors: Survivors) -> tuple[LeakSum, ...]:
    everything = np.ones(len(survivors.snapshot.live), bool)
    return leaks_by_stack(survivors, np.zeros(len(everything), np.int64), everything).get(0, ())
