"""The peak and temporary allocations: a line each, and with --sort peak or churn the stacks."""

from collections.abc import Iterator

from memleak_android.host.profile.field_types import BYTE
from memleak_android.host.profile.profile import AGE_BOUNDS_S, PastSite, Peak, Profile
from memleak_android.host.reports.base import ReportOptions, amount
from memleak_android.host.reports.text.stack import stack_lines
from memleak_android.host.reports.units import clock, count_text


def peak_line(peak: Peak, now: int, unit: str = BYTE) -> str:
    """`5,000 bytes at 0:07 (up to 5,100 between snapshots), 1,000 at the end`."""
    more = peak.level is not None and peak.level > peak.space
    level = f" (up to {peak.level:,} between snapshots)" if more else ""
    level = f" (at most {peak.bound:,} more)" if peak.bound else level
    return f"{count_text(peak.space, unit)} at {clock(peak.elapsed_ns)}{level}, {now:,} at the end"


def churn_line(profile: Profile) -> str:
    """Allocations that were freed, and how many stacks made them; "" if unknown."""
    totals = profile.totals
    if not profile.churn or totals.alloc_space is None or totals.alloc_objects is None:
        return ""
    objects = max(0, totals.alloc_objects - totals.inuse_objects)
    n, named = len(profile.churn), sum(site.objects or 0 for site in profile.churn)
    share = f"{min(1.0, named / max(objects, 1)):.0%} of them by {n:,} stack{'s' * (n != 1)}"
    return f"{amount(max(0, totals.alloc_space - totals.inuse_space), objects, profile.unit)}, {share} (--sort churn)"


def ages_text(ages: tuple[int, ...]) -> str:
    """` (12% below 1 s, 88% below 10 s)`; "" if all have one age or ages are unknown."""
    names = [*(f"below {_span(bound)}" for bound in AGE_BOUNDS_S), f"from {_span(AGE_BOUNDS_S[-1])} on"]
    whole = sum(ages)
    shares = [
        f"{count / whole:.0%} {name}" for count, name in zip(ages, names, strict=False) if count and whole
    ]
    return f" ({', '.join(shares)})" if len(shares) > 1 else ""


def _span(seconds: int) -> str:
    """`10 s`, `10 min` or `1 h`."""
    factor, unit = next(one for one in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= one[0])
    return f"{seconds // factor} {unit}"


def past_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """The section of --sort peak or churn, its title first."""
    if options.sort == "peak":
        yield from _peak_lines(profile, options)
    elif options.sort == "churn":
        amounts = churn_line(profile).removesuffix(" (--sort churn)")
        yield f"temporary allocations: {amounts or 'not known'}"
        yield from _site_lines(profile.churn, options)


def _peak_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    if profile.peak is None:
        yield "at the peak: no earlier snapshot held more than the end"
        return
    yield f"at the peak: {peak_line(profile.peak, profile.totals.inuse_space, profile.unit)}"
    yield from _site_lines(profile.peak.sites, options)
    rest = profile.peak.space - sum(site.space for site in profile.peak.sites)
    if rest > 0:
        yield f"     {count_text(rest, profile.unit)} by stacks that are not named here, or were not captured"


def _site_lines(sites: tuple[PastSite, ...], options: ReportOptions) -> Iterator[str]:
    shown = sites[: options.top] if options.top else sites
    for number, site in enumerate(shown, 1):
        what = (
            count_text(site.space, site.unit)
            if site.objects is None
            else amount(site.space, site.objects, site.unit)
        )
        yield f"{number:>3}. {what} from stack"
        yield f"     id {site.id}"
        yield from stack_lines(site.frames, options)
    if len(shown) < len(sites):
        yield f"... {len(sites) - len(shown)} more (-T {len(sites)} shows them)"
