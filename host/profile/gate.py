"""Judges a profile: what counts after suppressions and baseline, against the limits of --fail-on-leak and --fail-on-growth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.answering import answer_of, counted_places, growing_places, growth_of_places
from memleak_android.host.profile.comparison import compare, merged_sites
from memleak_android.host.profile.field_types import NO_LEAKS, common_unit
from memleak_android.host.profile.gate_result import Gate, GrowthGate, SuppressionUse
from memleak_android.host.profile.growth import Trend, UnownedPart
from memleak_android.host.profile.profile import CallSite, Measurement, Profile, SiteSum
from memleak_android.host.profile.suppressions import Suppressions


@dataclass(frozen=True, slots=True)
class GrowthLimit:
    """Bytes per second, or bytes per run of a scenario."""

    rate: float
    is_by_run: bool = False


def not_judged(profile: Profile) -> str:
    """Why growth was not judged; "" if it was."""
    span = profile.growth_span
    if span is not None and span.is_judged:
        return ""
    instants = span.instants if span is not None else 1
    needed = f", {span.needed} are needed" if span is not None else ""
    return f"growth is not judged, and has a limit: {instants} snapshot{'s' * (instants != 1)}{needed}"


def _not_known(profile: Profile, limit: GrowthLimit) -> str:
    """Why growth may exceed the limit unseen; "" if it cannot. Memory beyond the blocks that grows by less is within it."""
    beyond = [each for each in profile.unowned if limit.is_by_run or each.high > limit.rate]
    answer = answer_of(replace(profile, unowned=tuple(beyond)))
    if profile.answer is None or answer.state is not AnswerState.CANNOT_TELL:
        return ""
    return f"growth is not known, and has a limit: {answer.why}"


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
        unit=common_unit(site.unit for site in sites),
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
        found[site.id] = rate + site.growth.bytes_per_s * scale, hypot(error, site.growth.error * scale)
    return found


@dataclass(frozen=True, slots=True)
class LeakLimit:
    """--fail-on-leak: exceeded by more bytes, or by more blocks."""

    space: int
    objects: int | None = None


@dataclass(frozen=True, slots=True)
class GateRules:
    """Limits, suppressions and baseline of the command line. baseline: its profile and the name of its file."""

    limit: LeakLimit | None = None
    suppressions: Sequence[str] = ()
    baseline: tuple[Profile, str] | None = None
    growth: GrowthLimit | None = None

    @property
    def effective_limit(self) -> LeakLimit | None:
        """With a baseline and no limit, any growth is too much."""
        is_any = self.limit is None and self.growth is None and self.baseline is not None
        return LeakLimit(0) if is_any else self.limit

    @property
    def is_empty(self) -> bool:
        return not (self.limit or self.suppressions or self.baseline or self.growth)


def judge(profile: Profile, rules: GateRules) -> Profile:
    """The profile with its gate and suppressed sites; unchanged without rules."""
    if rules.is_empty:
        return profile
    profile = _with_suppressed(profile, rules.suppressions)
    if profile.answer is not None:
        profile = replace(profile, answer=answer_of(profile))
    if rules.growth and (reason := not_judged(profile) or _not_known(profile, rules.growth)):
        notes = tuple(dict.fromkeys((reason, *profile.notes)))
        profile = replace(profile, notes=notes, measurement=Measurement.INCOMPLETE)
    counts = sorted(_counts(profile, rules), key=lambda count: (-count.space, -count.objects, count.id))
    limit = rules.effective_limit
    gate = Gate(
        limit_space=limit.space if limit else None,
        limit_objects=limit.objects if limit else None,
        space=sum(count.space for count in counts),
        objects=sum(count.objects for count in counts),
        culprits=tuple(count.id for count in counts if count.id),
        baseline=rules.baseline[1] if rules.baseline else "",
        suppressions=_uses(profile.sites, rules.suppressions),
        unit=profile.unit,
    )
    return replace(profile, gate=_with_growth(gate, profile, rules))


def _with_growth(gate: Gate, profile: Profile, rules: GateRules) -> Gate:
    """Adds sites that grow to the culprits. If only growth is limited they replace those that hold too much."""
    if rules.growth is None or not_judged(profile):
        return gate
    sites = [site for site in profile.sites if site.kind != "runtime" and not site.suppressed_by]
    growth, growing = weigh_growth(rules.growth, sites, rules.baseline[0] if rules.baseline else None)
    in_all = growth_of_places(profile)
    if in_all is not None and not rules.baseline and in_all.bytes_per_s > growth.rate:
        growth = replace(growth, rate=in_all.bytes_per_s, error=in_all.error)
        growing = growing or _ids_of_growing_places(profile)
    if not rules.growth.is_by_run:
        unowned = [each for each in profile.unowned if each.part is UnownedPart.MAPPINGS]
        growth = replace(growth, rate=growth.rate + sum(each.bytes_per_s for each in unowned))
    if gate.limit_space is None or (growth.is_exceeded and not gate.holds_too_much):
        culprits = growing
    elif growth.is_exceeded:
        culprits = tuple(dict.fromkeys((*growing, *gate.culprits)))
    else:
        culprits = gate.culprits
    return replace(gate, growth=growth, culprits=culprits)


def _ids_of_growing_places(profile: Profile) -> tuple[str, ...]:
    """Of their sites, which add up to what no single one shows."""
    growing = set(map(id, growing_places(profile, counted_places(profile))))
    of_place = {number for number, place in enumerate(profile.places) if id(place) in growing}
    return tuple(
        dict.fromkeys(site.id for site in profile.sites if site.place in of_place and not site.suppressed_by)
    )


def _with_suppressed(profile: Profile, templates: Sequence[str]) -> Profile:
    suppressions = Suppressions(templates)
    sites = tuple(replace(site, suppressed_by=suppressions.find(site.frames)) for site in profile.sites)
    return replace(profile, sites=sites)


def _uses(sites: Sequence[CallSite], templates: Sequence[str]) -> tuple[SuppressionUse, ...]:
    used = []
    for template in dict.fromkeys(templates):
        matched = [site for site in sites if site.suppressed_by == template]
        if matched:
            space, objects = sum(s.inuse_space for s in matched), sum(s.inuse_objects for s in matched)
            used.append(SuppressionUse(template, space, objects))
    return tuple(used)


def _counts(profile: Profile, rules: GateRules) -> list[SiteSum]:
    """Counted bytes and blocks by site id; blocks without a stack have the id ""."""
    sites = [site for site in profile.sites if site.kind not in NO_LEAKS and not site.suppressed_by]
    counted = merged_sites(sites)
    totals = profile.totals
    if rules.baseline is None:
        counts = [SiteSum(site.id, site.inuse_space, site.inuse_objects) for site in counted.values()]
        counts.append(SiteSum("", totals.unattributed_space, totals.unattributed_objects))
    else:
        comparison = compare(rules.baseline[0], profile)
        growth = [change for change in comparison.changes if change.id in counted]
        counts = [SiteSum(grown.id, max(0, grown.space), max(0, grown.objects)) for grown in growth]
        old, new = comparison.unattributed
        counts.append(SiteSum("", max(0, new.space - old.space), max(0, new.objects - old.objects)))
    return [count for count in counts if count.space or count.objects]
