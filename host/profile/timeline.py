"""Outstanding memory over time: the heap and its largest sites at each interval print, in bounded memory."""

from memleak_android.host.profile.comparison import merged_sites
from memleak_android.host.profile.profile import Instant, Profile, SiteSum

INSTANTS_MAX = 1_000  # beyond, every other one is dropped: the times stay evenly spread
SITES_MAX = 30  # kept of each instant; the others are in its sums


class Timeline:
    """Collects the profiles of the interval prints."""

    def __init__(self) -> None:
        self._instants: list[Instant] = []
        self._step = 1
        self._seen = 0

    def add(self, profile: Profile) -> None:
        if self._seen % self._step == 0:
            self._instants.append(instant(profile))
        self._seen += 1
        if len(self._instants) > INSTANTS_MAX:
            self._instants = self._instants[::2]
            self._step *= 2

    def until(self, last: Profile) -> tuple[Instant, ...]:
        """All instants and the end; () if there was no interval print."""
        return (*self._instants, instant(last)) if self._instants else ()


def instant(profile: Profile) -> Instant:
    heap = merged_sites(site for site in profile.sites if site.kind != "mmap").values()
    largest = sorted(heap, key=lambda site: (-site.inuse_space, site.id))[:SITES_MAX]
    return Instant(
        profile.duration_ns,
        profile.totals.inuse_space,
        profile.totals.inuse_objects,
        tuple(SiteSum(site.id, site.inuse_space, site.inuse_objects) for site in largest),
    )
