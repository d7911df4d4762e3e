"""The gate in words: what counted, the limits, suppressions; a failure has at most 20 lines."""

from collections.abc import Iterator

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.gate_result import Gate, GrowthGate
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.reports.base import amount, amount_of, bounded, frame_text
from memleak_android.host.reports.text.growth import site_growth
from memleak_android.host.reports.units import count_text, rate_text

SITES_MAX = 8  # two lines each: the failure text is of at most 20 lines
WIDTH_MAX = 200


def gate_text(gate: Gate) -> str:
    """Blocks and bytes that counted against each limit."""
    return "; ".join(gate_lines(gate))


def held_line(gate: Gate) -> str:
    """`5,000 bytes in 5 allocations counted, limit 1,000 bytes`."""
    what = "grown by" if gate.baseline else "counted"
    since = f" since {bounded(gate.baseline)}" if gate.baseline else ""
    return f"{amount(gate.space, gate.objects, gate.unit)} {what}{since}, {limit_text(gate)}"


def limit_text(gate: Gate) -> str:
    if gate.limit_space is None:
        return "no limit"
    blocks = f" or {gate.limit_objects:,} allocations" if gate.limit_objects is not None else ""
    return f"limit {count_text(gate.limit_space, gate.unit)}{blocks}"


def growth_line(growth: GrowthGate) -> str:
    """`2 stacks grow by 1.3 ± 0.1 MiB/min, limit 1.0 MiB/min`."""
    limit = f"limit {rate_text(growth.limit, run_s=growth.run_s, unit=growth.unit)}"
    if not growth.stacks and not growth.rate:
        return f"no stack grows, {limit}"
    rate = rate_text(growth.rate, growth.error, growth.run_s, growth.unit)
    if not growth.stacks:
        return f"no single stack explains that {rate} more are held, {limit}"
    return f"{growth.stacks} stack{'s' * (growth.stacks > 1)} grow{'s' * (growth.stacks == 1)} by {rate}, {limit}"


def gate_lines(gate: Gate) -> Iterator[str]:
    """A line per limit; without a limit, what counted."""
    if gate.limit_space is not None or gate.growth is None:
        yield held_line(gate)
    if gate.growth is not None:
        yield growth_line(gate.growth)


def suppression_lines(gate: Gate) -> Iterator[str]:
    """Allocations that each suppression matched, in LeakSanitizer's columns."""
    if gate.suppressions:
        yield "Suppressions used:"
        yield "  count      bytes template"
    for use in gate.suppressions:
        yield f"{use.objects:>7} {use.space:>10} {bounded(use.template)}"


def culprits(profile: Profile) -> list[CallSite]:
    """Sites that counted, the largest first; one of each id."""
    by_id = {site.id: site for site in reversed(profile.sites)}
    return [by_id[id_] for id_ in (profile.gate.culprits if profile.gate else ()) if id_ in by_id]


def site_line(site: CallSite) -> str:
    """`4 bytes in 1 allocation  f()+0x4  a.cc:5 [libx.so]`, by the responsible function."""
    frame = responsible_frame(site.frames)
    return f"{amount_of([site])}  {frame_text(frame) if frame else 'no stack'}"


def failure_lines(profile: Profile) -> list[str]:
    """Why the check failed; nothing if it did not."""
    gate = profile.gate
    if gate is None or not gate.is_exceeded:
        return []
    sites = culprits(profile)
    lines = [f"FAIL: {line}" for line in gate_lines(gate)]
    for number, site in enumerate(sites[:SITES_MAX], 1):
        lines.append(f"{number:>3}. {site_line(site)}")
        growth = site_growth(site) if gate.growth else ""
        oldest = f"oldest {site.oldest_ns / 1e9:.1f} s" * bool(site.inuse_objects)
        lines.append(f"     {', '.join(filter(None, (growth, oldest, f'id {site.id}')))}")
    if len(sites) > SITES_MAX:
        lines.append(f"     … and {len(sites) - SITES_MAX} more stacks")
    suppressed = sum(use.objects for use in gate.suppressions)
    if suppressed:
        lines.append(f"     {suppressed:,} more allocations are suppressed")
    return [line if len(line) <= WIDTH_MAX else f"{line[: WIDTH_MAX - 1]}…" for line in lines]
