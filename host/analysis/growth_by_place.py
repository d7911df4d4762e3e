"""Stacks → places: what one function and line of the program answers for, with the growth of the sum of its stacks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.growth_by_stack import SessionGrowth, StackHistory
from memleak_android.host.analysis.sites import SiteNamer, end_name
from memleak_android.host.heap.attribution import UNATTRIBUTED
from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.growth import Growth, grows
from memleak_android.host.profile.profile import CallSite
from memleak_android.host.profile.runtime_sites import is_generated, is_runtime
from memleak_android.host.profile.site_id import PlaceNumbers
from memleak_android.host.profile.sort_orders import growth_rate
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.symbols.packages import PackageSearch

REST_FALL_MAX = 0.1  # of what its growing stacks rose by: others that fall hold blocks that moved


class _Members(NamedTuple):
    """Stacks that belong to places. space, objects: held now. freed: held at the last instant, and no more. keeps: 1 = has freed nothing."""

    stack: NDArray[np.int64]
    place: NDArray[np.int64]
    space: NDArray[np.int64]
    objects: NDArray[np.int64]
    freed: NDArray[np.int64]
    keeps: NDArray[np.int64]


def judge_places(
    sites: Sequence[CallSite],
    stacks: NDArray[np.int64],
    numbers: PlaceNumbers,
    growth: SessionGrowth,
    namer: SiteNamer,
) -> tuple[tuple[Place, ...], tuple[CallSite, ...]]:
    """By number. And of each that grows and holds nothing at the end one site: the stack that freed most.

    stacks: (sites,) number of each site's stack.
    """
    members, most_freed = _holding(sites, stacks), dict[int, CallSite]()
    if growth.history is not None:
        freed, most_freed = _freed(growth.history, numbers, namer)
        members = _Members(*map(np.concatenate, zip(members, freed, strict=True)))
    n = len(numbers.firsts)
    sums = [_sum(members.place, column, n) for column in members[2:5]]
    counts = np.bincount(members.place, minlength=n).tolist()
    judged = dict[int, Growth]()
    if growth.history is not None:
        judged = growth.history.judge(_group(growth.history, members, members.place >= 0), n)
        judged |= _of_growing_stacks(growth, growth.history, members, n, judged)
    freed_sites = tuple(
        replace(site, growth=judged[number])
        for number, site in most_freed.items()
        if not sums[1][number] and grows(judged.get(number))
    )
    places = tuple(
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
    return places, freed_sites


def _of_growing_stacks(
    growth: SessionGrowth, history: StackHistory, members: _Members, n: int, judged: dict[int, Growth]
) -> dict[int, Growth]:
    """Of places whose sum does not grow: of their stacks that do and never freed, if the others hold no less.

    A table that is doubled beside the blocks that it lists makes the sum's rate uncertain.
    """
    does = [
        grows(growth.by_stack.get(stack)) and not grows(judged.get(place))
        for stack, place in zip(members.stack.tolist(), members.place.tolist(), strict=True)
    ]
    is_growing = np.array(does, bool) & (members.keeps > 0)
    risen, rest = (history.risen(_group(history, members, of), n) for of in (is_growing, ~is_growing))
    is_growing &= (rest >= -REST_FALL_MAX * risen)[members.place]
    found = history.judge(_group(history, members, is_growing), n)
    return {place: each for place, each in found.items() if grows(each)}


def _group(history: StackHistory, members: _Members, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The place of each stack that is chosen, UNATTRIBUTED of the others."""
    found = np.full(history.n_stacks, UNATTRIBUTED)
    found[members.stack[chosen]] = members.place[chosen]
    return found


def _holding(sites: Sequence[CallSite], stacks: NDArray[np.int64]) -> _Members:
    columns = [
        (site.place, site.inuse_space, site.inuse_objects, 0, site.alloc_objects == site.inuse_objects)
        for site in sites
    ]
    return _Members(stacks, *np.array(columns, np.int64).reshape(-1, 5).T)


def _freed(
    history: StackHistory, numbers: PlaceNumbers, namer: SiteNamer
) -> tuple[_Members, dict[int, CallSite]]:
    """And by place the stack that freed most, as a site that holds nothing."""
    stacks, freed = history.given_back()
    namer.resolve(stacks)
    traces = namer.table.traces[namer.table.first_trace[stacks]]
    places, most = list[int](), dict[int, CallSite]()
    for function, end, (frames, id_) in zip(
        traces["function"].tolist(), traces["end"].tolist(), namer.named(stacks), strict=True
    ):
        kind = namer.kind(function, frames, 1)
        places.append(number := numbers.number(frames, kind))
        if number not in most:
            most[number] = CallSite(
                id=id_,
                inuse_space=0,
                inuse_objects=0,
                alloc_space=None,
                alloc_objects=None,
                oldest_ns=0,
                kind=kind,
                end=end_name(end),
                frames=frames,
                place=number,
                unit=namer.unit(kind),
            )
    nothing = np.zeros(len(stacks), np.int64)
    members = _Members(stacks, np.array(places, np.int64), nothing, nothing, freed, nothing)
    return members, most


def _sum(place: NDArray[np.int64], column: NDArray[np.int64], n: int) -> list[int]:
    found = np.zeros(n, np.int64)
    np.add.at(found, place, column)
    return found.tolist()


MODULES_MAX = 20  # more than a first screen shows


def with_packages(
    places: Sequence[Place], files: Sequence[ModuleFile], search: PackageSearch
) -> tuple[Place, ...]:
    """The C and C++ runtime's modules need none."""
    by_path = {file.path: file for file in files}
    ranked = sorted(places, key=lambda place: (-growth_rate(place), -place.space))
    modules = dict.fromkeys(
        place.module
        for place in ranked
        if not place.file and place.module in by_path and not is_generated(place.module)
    )
    shown = [by_path[module] for module in modules if not is_runtime(module)][:MODULES_MAX]
    found = {file.path: package for file, package in zip(shown, search.find(shown), strict=True) if package}
    return tuple(
        replace(place, package=found[place.module]) if not place.file and place.module in found else place
        for place in places
    )
