"""The table of sort orders: each is an option, each sorts, and none loses its first site to the cut before it."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from memleak_android.host.analysis.block_sums import StackSums, largest_sums
from memleak_android.host.profile.growth import Growth, Trend
from memleak_android.host.profile.sort_orders import WEIGHTS, Sort, sorted_sites
from tests.support.builders.profiles import DECODE

GROWTH = {7: Growth(Trend.GROWS, 5.0, 4.0, 6.0, 0, 11), 8: Growth(Trend.STEADY, -3.0, -4.0, -2.0, 0, 0)}
SITES = [
    replace(DECODE, id=f"{i:016}", inuse_space=1009 - i, inuse_objects=1 + i % 7, growth=GROWTH.get(i))
    for i in range(12)
]


def test_every_order_has_a_weight() -> None:
    assert get_args(Sort) == tuple(WEIGHTS)


@pytest.mark.parametrize("sort", WEIGHTS)
def test_the_first_site_of_every_order_survives_the_cut(sort: Sort) -> None:
    space, objects = (
        np.array([getattr(site, name) for site in SITES]) for name in ("inuse_space", "inuse_objects")
    )
    zeros = np.zeros(len(SITES), np.int64)
    sums = StackSums(space, objects, zeros, zeros, zeros.astype(bool), zeros, zeros, zeros)
    kept = largest_sums(sums, GROWTH, 1).inuse_objects
    assert kept[SITES.index(sorted_sites(SITES, sort)[0])] > 0
    assert np.count_nonzero(kept) == 3
