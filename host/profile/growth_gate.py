"""--fail-on-growth: the total rate of the stacks that grow, against a limit by time or by run of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.gate_result import GrowthGate
from memleak_android.host.profile.profile import CallSite, Growth, Profile, Trend


@dataclass(frozen=True, slots=True)
class GrowthLimit:
    """Bytes per second, or bytes per run of a scenario."""

    rate: float
    is_by_run: bool = False


def not_judged(profile: Profile) -> str:
    """Why growth was not judged; "" if it was."""
    span = profile.growth
    if span is not None and span.is_judged:
        return ""
    instants = span.instants if span is not None else 1
    needed = f", {span.needed} are needed" if span is not None else ""
    return f"growth is not judged, and has a limit: {instants} snapshot{'s' * (instants != 1)}{needed}"


def weigh_growth(
    limit: GrowthLimit, sites: Sequence[CallSite], baseline: Profile | None
) -> tuple[GrowthGate, tuple[str, ...]]:
    """The result, and the ids of the sites that grow, fastest first.

    sites: those that count.
    baseline: only growth that is faster than there counts.
    Raises UsageError if the limit is by run and growth is by time.
    """
    run_s = max((site.growth.run_s for site in sites if site.growth), default=0.0)
    if limit.is_by_run and not run_s and any(site.growth for site in sites):
        raise UsageError(
            "--fail-on-growth by run, and no scenario was run", "write the limit by time: 1MB/min"
        )
    known = _rates(baseline.sites, run_s) if baseline else {}
    counted: dict[str, tuple[float, float]] = {}
    for site_id, (rate, error) in _rates(sites, run_s).items():
        old_rate, old_error = known.get(site_id, (0.0, 0.0))
        if rate > old_rate:
            counted[site_id] = rate - old_rate, hypot(error, old_error)
    gate = GrowthGate(
        limit=limit.rate / run_s if limit.is_by_run and run_s else limit.rate,
        rate=sum(rate for rate, _ in counted.values()),
        error=hypot(*(error for _, error in counted.values())),
        stacks=len(counted),
        run_s=run_s,
    )
    return gate, tuple(sorted(counted, key=lambda site_id: -counted[site_id][0]))


def _rates(sites: Sequence[CallSite], run_s: float) -> dict[str, tuple[float, float]]:
    """By id, bytes per second and its error. Runs are scaled to run_s, so that two results compare."""
    found: dict[str, tuple[float, float]] = {}
    for site in sites:
        if site.growth is None or site.growth.trend is not Trend.GROWS:
            continue
        rate, error = found.get(site.id, (0.0, 0.0))
        scale = site.growth.run_s / run_s if run_s and site.growth.run_s else 1.0
        found[site.id] = rate + site.growth.bytes_per_s * scale, hypot(error, _error(site.growth) * scale)
    return found


def _error(growth: Growth) -> float:
    return (growth.high - growth.low) / 2
