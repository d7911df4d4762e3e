"""Growth in words: stacks, rates, since when, and their share of all growth."""

from collections import Counter
from collections.abc import Iterator
from math import hypot

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.growth import Growth, Trend, UnownedGrowth
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.profile.sort_orders import growth_rate
from memleak_android.host.reports.base import bounded, frame_text
from memleak_android.host.reports.text.messages import TRENDS, UNOWNED
from memleak_android.host.reports.units import clock, rate_text

SITES_MAX = 3  # named in the answer; all are in the sites' own lines


def growth_lines(profile: Profile) -> Iterator[str]:
    """Growth in all, then the stacks that grow fastest, and growth without a stack. Nothing if there was one snapshot only."""
    yield from _of_stacks(profile)
    for each in profile.unowned:
        rate = rate_text(each.bytes_per_s, (each.high - each.low) / 2)
        yield f"the process grows by {rate} since {clock(each.since_ns)} in {UNOWNED[each.part]}{_largest(each)}"


def _largest(growth: UnownedGrowth) -> str:
    """`: nameless 15,728,640 bytes in 1, /memfd:x 4,096 bytes in 2`; "" without mappings."""
    found = [
        f"{bounded(each.name) or 'nameless'} {each.space:,} bytes in {each.mappings:,}"
        for each in growth.largest
    ]
    return f": {', '.join(found)}" if found else ""


def _of_stacks(profile: Profile) -> Iterator[str]:
    span = profile.growth_span
    if span is None:
        return
    if not span.is_judged:
        yield (
            f"not judged: {span.instants} {'runs' if span.run_s else 'snapshots'}, {span.needed} are needed"
            f" ({'--repeat' if span.run_s else 'measure longer, or say how often by --interval'})"
        )
        return
    sites = [site for site in profile.sites if not site.suppressed_by]
    growing = sorted((site for site in sites if growth_rate(site)), key=growth_rate, reverse=True)
    judged = f"{span.instants} {'runs' if span.run_s else 'snapshots'} from {clock(span.from_ns)} to {clock(span.to_ns)}"
    if profile.answer is not None:  # which has the rates, by places
        n = len(growing)
        yield f"of single stacks {n:,} grow{'s' * (n == 1)} ({judged}{_others(sites)})"
        return
    if not growing:
        yield f"no stack grows ({judged}{_others(sites)})"
        return
    rates = [site.growth for site in growing if site.growth is not None]
    whole = sum(max(0, site.growth.rise) for site in sites if site.growth is not None)
    share = sum(rate.rise for rate in rates) / max(whole, 1)
    error = hypot(*(rate.error for rate in rates))
    together = rate_text(sum(rate.bytes_per_s for rate in rates), error, span.run_s, profile.unit)
    n = len(growing)
    yield f"{n} stack{'s' * (n > 1)} grow{'s' * (n == 1)} by {together}, {share:.0%} of all growth ({judged}{_others(sites)})"
    for site in growing[:SITES_MAX]:
        frame = responsible_frame(site.frames)
        yield f"  {site_growth(site)}  {frame_text(frame) if frame else 'no stack'}, id {bounded(site.id)}"
    if n > SITES_MAX:
        yield f"  … and {n - SITES_MAX} more (--sort growth)"


def site_growth(site: CallSite) -> str:
    """`1.3 ± 0.1 MiB/min since 0:42` of a site that grows, else its trend; "" if not judged."""
    rate = trend_text(site.growth, site.unit)
    grows = site.growth is not None and site.growth.trend is Trend.GROWS
    return f"{rate} since {clock(site.growth.since_ns)}" if grows and site.growth else rate


def trend_text(growth: Growth | None, unit: str) -> str:
    """`1.3 ± 0.1 MiB/min`, or the trend of what does not grow; "" if not judged."""
    if growth is None:
        return ""
    if growth.trend is not Trend.GROWS:
        return TRENDS[growth.trend]
    return rate_text(growth.bytes_per_s, growth.error, growth.run_s, unit)


def _others(sites: list[CallSite]) -> str:
    """`; 2 rose in one step, 1 rose and levelled off`."""
    counts = Counter(site.growth.trend for site in sites if site.growth is not None)
    others = [
        f"{counts[trend]} {TRENDS[trend]}"
        for trend in (Trend.BURST, Trend.RISES, Trend.PLATEAU)
        if counts[trend]
    ]
    return f"; {', '.join(others)}" if others else ""
