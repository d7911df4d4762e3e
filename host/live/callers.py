"""The tree of callers: the sum held by each function's callees, from the thread's start inward."""

from __future__ import annotations

from dataclasses import dataclass, field

from memleak_android.host.live.messages import Sites
from memleak_android.host.live.rows import matches


@dataclass(slots=True)
class Caller:
    """frame: a number in Sites.frames, -1 = the root. Sums are those of all stacks that pass through here."""

    frame: int
    space: int = 0
    objects: int = 0
    callees: dict[int, Caller] = field(default_factory=dict)

    @property
    def largest_first(self) -> list[Caller]:
        return sorted(self.callees.values(), key=lambda one: (-one.space, one.frame))


def callers(sites: Sites, wanted: str = "") -> Caller:
    """Builds the tree of the stacks that the filter shows; regions, which hold the heap, are left out."""
    root = Caller(-1)
    for site in sites.sites:
        if site.kind == "mmap" or not matches(site, sites.frames, wanted):
            continue
        node = root
        node.space += site.space
        node.objects += site.objects
        for number in reversed(site.frames):
            node = node.callees.setdefault(number, Caller(number))
            node.space += site.space
            node.objects += site.objects
    return root
