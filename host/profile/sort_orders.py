"""The orders of `--sort`: one table for the option, the reports and the cut to the largest stacks."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.growth import Trend
from memleak_android.host.profile.profile import CallSite

Sort = Literal["size", "count", "growth", "peak", "churn"]
Weight = Callable[[Any, Any, Any], Any]


def _size(space: Any, objects: Any, rate: Any) -> Any:
    return space


# Weights of bytes, blocks and growth (bytes per second), of one site or as columns of many: largest first.
# peak and churn have a section of their own in the reports.
WEIGHTS: dict[Sort, Weight] = {
    "size": _size,
    "count": lambda space, objects, rate: objects,
    "growth": lambda space, objects, rate: rate,
    "peak": _size,
    "churn": _size,
}


def sorted_sites(sites: Iterable[CallSite], sort: Sort) -> list[CallSite]:
    """Sites by weight, then by bytes, blocks and id, so that reports are comparable."""

    def key(site: CallSite) -> tuple[float, int, int, str]:
        space, objects = site.inuse_space, site.inuse_objects
        return -WEIGHTS[sort](space, objects, growth_rate(site)), -space, -objects, site.id

    return sorted(sites, key=key)


def growth_rate(one: CallSite | Place) -> float:
    """Bytes per second of a site or place that grows, else 0."""
    growth = one.growth
    return growth.bytes_per_s if growth is not None and growth.trend is Trend.GROWS else 0.0
