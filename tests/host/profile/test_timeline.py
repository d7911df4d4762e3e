"""The timeline: sums and largest sites of each interval print, bounded."""

from dataclasses import replace
from itertools import pairwise

from memleak_android.host.profile.profile import SiteSum
from memleak_android.host.profile.timeline import INSTANTS_MAX, SITES_MAX, Timeline, instant
from tests.support.builders.profiles import DECODE, REGION, profile


def test_sums_and_sites_without_regions() -> None:
    one = instant(profile(sites=(DECODE, REGION, DECODE)))
    assert (one.elapsed_ns, one.space, one.objects) == (12_345_000_000, 101_211, 29)
    assert one.sites == (SiteSum(DECODE.id, 2 * DECODE.inuse_space, 2 * DECODE.inuse_objects),)


def test_only_the_largest_sites_are_kept() -> None:
    many = tuple(replace(DECODE, id=f"{i:x}", inuse_space=i) for i in range(100))
    kept = [site.space for site in instant(profile(sites=many)).sites]
    assert kept == list(range(99, 99 - SITES_MAX, -1))


def test_the_end_is_the_last_instant() -> None:
    timeline = Timeline()
    assert timeline.until(profile()) == ()
    timeline.add(profile(duration_ns=5))
    assert [one.elapsed_ns for one in timeline.until(profile(duration_ns=7))] == [5, 7]


def test_memory_is_bounded_and_times_stay_even() -> None:
    timeline = Timeline()
    for i in range(3 * INSTANTS_MAX):
        timeline.add(profile(duration_ns=i, sites=()))
    times = [one.elapsed_ns for one in timeline.until(profile())][:-1]
    assert INSTANTS_MAX / 2 < len(times) <= INSTANTS_MAX + 1
    assert {after - before for before, after in pairwise(times)} == {4}
