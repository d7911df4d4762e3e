"""Stacks → places: what one function and line of the program answers for, with the growth of the sum of its stacks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.growth_by_stack import SessionGrowth
from memleak_android.host.heap.attribution import UNATTRIBUTED
from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.growth import Growth
from memleak_android.host.profile.profile import CallSite, Frame
from memleak_android.host.profile.site_id import identity_part, responsible_frame


class PlaceNumbers:
    """Numbers places in the order in which their stacks come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes, str, int], int] = {}
        self.firsts: list[tuple[Frame | None, str]] = []  # of each place: its frame, its kind

    def number(self, frames: Sequence[Frame], kind: str) -> int:
        frame = responsible_frame(frames)
        key = (kind, identity_part(frame), frame.file or "", frame.line or 0) if frame else (kind, b"", "", 0)
        found = self._numbers.setdefault(key, len(self._numbers))
        if found == len(self.firsts):
            self.firsts.append((frame, kind))
        return found


class PlaceSum(NamedTuple):
    space: int = 0
    objects: int = 0
    stacks: int = 0

    def with_site(self, site: CallSite) -> "PlaceSum":
        return PlaceSum(self.space + site.inuse_space, self.objects + site.inuse_objects, self.stacks + 1)


def judge_places(
    sites: Sequence[CallSite], stacks: NDArray[np.int64], numbers: PlaceNumbers, growth: SessionGrowth
) -> tuple[Place, ...]:
    """By number. stacks: (sites,) number of each site's stack."""
    sums = [PlaceSum()] * len(numbers.firsts)
    for site in sites:
        if site.place is not None:
            sums[site.place] = sums[site.place].with_site(site)
    judged = dict[int, Growth]()
    if growth.history is not None:
        group = np.full(growth.history.n_stacks, UNATTRIBUTED)
        group[stacks] = [UNATTRIBUTED if site.place is None else site.place for site in sites]
        judged = growth.history.judge(group, len(sums))
    return tuple(
        Place(
            function=frame.function if frame else "",
            module=frame.module if frame else "",
            kind=kind,
            space=held.space,
            objects=held.objects,
            stacks=held.stacks,
            growth=judged.get(number),
            file=frame.file if frame else None,
            line=frame.line if frame else None,
        )
        for number, ((frame, kind), held) in enumerate(zip(numbers.firsts, sums, strict=True))
    )
