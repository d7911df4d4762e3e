"""Several processes in one report: the table of them, and whose a site's blocks are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memleak_android.host.profile.profile import CallSite, ProcessSum, Profile
from memleak_android.host.profile.site_id import responsible_frame
from memleak_android.host.reports.base import ReportOptions, bounded, frame_text

SHARES_MAX = 4
NAME_MAX = 32
_HEADINGS = ("BYTES", "ALLOCATIONS", "COMPLETE", "PID", "PROCESS", "TOP SITE")


def process_names(profile: Profile) -> dict[int, str]:
    return {one.pid: one.name for one in profile.processes}


def process_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Aligned, the headings first; COMPLETE: of the bytes, those whose stack reaches its root."""
    shown = profile.processes[: options.top] if options.top else profile.processes
    tops = _places(profile, {one.top_site for one in shown})
    rows = [_HEADINGS, *(_cells(one, tops) for one in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:4], widths, strict=False)]
        yield "  " + "  ".join([*cells, row[4].ljust(widths[4]), row[5]]).rstrip()
    hidden = profile.processes[len(shown) :]
    if hidden:
        rest = sum(one.space for one in hidden)
        yield f"  ... {len(hidden):,} more: {rest:,} bytes (-T {len(profile.processes)} shows all)"


def shares_text(site: CallSite, names: Mapping[int, str]) -> str:
    """`leak (pid 12) 1,000 bytes, sh (pid 7) 3 bytes and 2 more processes`; of a single one its name alone."""
    shares = site.processes
    if len(shares) == 1:
        return process_text(shares[0].pid, names)
    shown = [f"{process_text(one.pid, names)} {one.space:,} bytes" for one in shares[:SHARES_MAX]]
    more = len(shares) - len(shown)
    return ", ".join(shown) + (f" and {more} more process{'es' * (more > 1)}" if more else "")


def process_text(pid: int, names: Mapping[int, str]) -> str:
    name = bounded(names.get(pid, ""), NAME_MAX)
    return f"{name} (pid {pid})" if name else f"pid {pid}"


def _cells(one: ProcessSum, tops: Mapping[str, str]) -> tuple[str, ...]:
    complete = f"{one.complete_space / one.space:.1%}" if one.space else "-"
    name = bounded(one.name, NAME_MAX) or "?"
    return f"{one.space:,}", f"{one.objects:,}", complete, str(one.pid), name, tops.get(one.top_site, "-")


def _places(profile: Profile, wanted: set[str]) -> dict[str, str]:
    """By id of a site: where the program's own code called, as one line."""
    found: dict[str, str] = {}
    for site in profile.sites:
        if site.id in wanted and site.id not in found:
            frame = responsible_frame(site.frames) or next(iter(site.frames), None)
            found[site.id] = f"{site.id}  {frame_text(frame)}" if frame else site.id
    return found
