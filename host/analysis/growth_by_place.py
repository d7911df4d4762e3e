"""Stacks → places: what one function and line of the program answers for, with the growth of the sum of its stacks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.growth_by_stack import SessionGrowth, StackHistory
from memleak_android.host.analysis.sites import SiteNamer
from memleak_android.host.heap.attribution import UNATTRIBUTED
from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.growth import Growth
from memleak_android.host.profile.profile import CallSite
from memleak_android.host.profile.site_id import PlaceNumbers


class _Members(NamedTuple):
    """Stacks that belong to places. space, objects: held now. freed: held at the last instant, and no more."""

    stack: NDArray[np.int64]
    place: NDArray[np.int64]
    space: NDArray[np.int64]
    objects: NDArray[np.int64]
    freed: NDArray[np.int64]


def judge_places(
    sites: Sequence[CallSite],
    stacks: NDArray[np.int64],
    numbers: PlaceNumbers,
    growth: SessionGrowth,
    namer: SiteNamer,
) -> tuple[Place, ...]:
    """By number. stacks: (sites,) number of each site's stack."""
    members = _holding(sites, stacks)
    if growth.history is not None:
        freed = _freed(growth.history, numbers, namer)
        members = _Members(*map(np.concatenate, zip(members, freed, strict=True)))
    n = len(numbers.firsts)
    sums = [_sum(members.place, column, n) for column in members[2:]]
    counts = np.bincount(members.place, minlength=n).tolist()
    judged = dict[int, Growth]()
    if growth.history is not None:
        group = np.full(growth.history.n_stacks, UNATTRIBUTED)
        group[members.stack] = members.place
        judged = growth.history.judge(group, n)
    return tuple(
        Place(
            function=frame.function if frame else "",
            module=frame.module if frame else "",
            kind=kind,
            space=space,
            objects=objects,
            stacks=count,
            freed=freed,
            growth=judged.get(number),
            file=frame.file if frame else None,
            line=frame.line if frame else None,
            unit=namer.unit(kind),
        )
        for number, ((frame, kind), count, space, objects, freed) in enumerate(
            zip(numbers.firsts, counts, *sums, strict=True)
        )
    )


def _holding(sites: Sequence[CallSite], stacks: NDArray[np.int64]) -> _Members:
    rows = np.array([(site.place, site.inuse_space, site.inuse_objects) for site in sites], np.int64).reshape(
        -1, 3
    )
    return _Members(stacks, rows[:, 0], rows[:, 1], rows[:, 2], np.zeros(len(rows), np.int64))


def _freed(history: StackHistory, numbers: PlaceNumbers, namer: SiteNamer) -> _Members:
    stacks, freed = history.given_back()
    namer.resolve(stacks)
    functions = namer.table.traces["function"][namer.table.first_trace[stacks]].tolist()
    named = zip(functions, namer.named(stacks), strict=True)
    places = [numbers.number(frames, namer.kind(function, frames, 1)) for function, (frames, _) in named]
    nothing = np.zeros(len(stacks), np.int64)
    return _Members(stacks, np.array(places, np.int64), nothing, nothing, freed)


def _sum(place: NDArray[np.int64], column: NDArray[np.int64], n: int) -> list[int]:
    found = np.zeros(n, np.int64)
    np.add.at(found, place, column)
    return found.tolist()
