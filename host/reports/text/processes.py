"""Several processes in one report: their table, and their shares of a site."""

from collections.abc import Iterator, Mapping

from memleak_android.host.console import aligned
from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.profile import CallSite, ProcessSum, Profile
from memleak_android.host.reports.base import ReportOptions, bounded, frame_text

SHARES_MAX = 4
NAME_MAX = 32
_HEADINGS = ("BYTES", "ALLOCATIONS", "COMPLETE", "PID", "PROCESS", "TOP SITE")


def process_names(profile: Profile) -> dict[int, str]:
    return {process.pid: process.name for process in profile.processes}


def process_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Aligned columns. COMPLETE: share of the bytes with a stack that reaches its root."""
    shown = profile.processes[: options.top] if options.top else profile.processes
    tops = _top_frames(profile, {process.top_site for process in shown})
    rows = [_HEADINGS, *(_cells(process, tops) for process in shown)]
    yield from (f"  {line}" for line in aligned(rows, {4, 5}))
    hidden = profile.processes[len(shown) :]
    if hidden:
        rest = sum(process.space for process in hidden)
        yield f"  ... {len(hidden):,} more: {rest:,} bytes (-T {len(profile.processes)} shows all)"


def shares_text(site: CallSite, names: Mapping[int, str]) -> str:
    """`leak (pid 12) 1,000 bytes, sh (pid 7) 3 bytes and 2 more processes`; of a single process its name alone."""
    shares = site.processes
    if len(shares) == 1:
        return process_text(shares[0].pid, names)
    shown = [f"{process_text(share.pid, names)} {share.space:,} bytes" for share in shares[:SHARES_MAX]]
    more = len(shares) - len(shown)
    return ", ".join(shown) + (f" and {more} more process{'es' * (more > 1)}" if more else "")


def process_text(pid: int, names: Mapping[int, str]) -> str:
    name = bounded(names.get(pid, ""), NAME_MAX)
    return f"{name} (pid {pid})" if name else f"pid {pid}"


def _cells(process: ProcessSum, tops: Mapping[str, str]) -> tuple[str, ...]:
    complete = f"{process.complete_space / process.space:.1%}" if process.space else "-"
    name = bounded(process.name, NAME_MAX) or "?"
    return (
        f"{process.space:,}",
        f"{process.objects:,}",
        complete,
        str(process.pid),
        name,
        tops.get(process.top_site, "-"),
    )


def _top_frames(profile: Profile, wanted: set[str]) -> dict[str, str]:
    """By site id: the innermost frame of the program's own code, as one line."""
    found: dict[str, str] = {}
    for site in profile.sites:
        if site.id in wanted and site.id not in found:
            frame = responsible_frame(site.frames) or next(iter(site.frames), None)
            found[site.id] = f"{site.id}  {frame_text(frame)}" if frame else site.id
    return found
