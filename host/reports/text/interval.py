"""The interval print: the top stacks at one instant."""

import time
from typing import TextIO

from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.profile.sort_orders import sorted_sites
from memleak_android.host.reports.base import ROOT, ReportOptions, frame_text


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """`[HH:MM:SS] Top N stacks with outstanding allocations:` and each stack's sums and frames, largest first.

    The format is that of bcc's memleak, for scripts that parse it. Partial stacks, approximate sums and unattributed
    blocks, which it does not have, are lines of their own.
    """
    sites = sorted_sites(profile.sites, options.sort)
    shown = sites[: options.top] if options.top else sites
    clock = time.strftime("%H:%M:%S", time.localtime(profile.wall_clock_s))
    lines = [f"[{clock}] Top {len(shown)} stacks with outstanding allocations:"]
    for site in shown:
        lines += _site_lines(site, options.show_allocs and not options.combined_only)
    unattributed = profile.totals.unattributed_objects
    if unattributed:
        lines.append(
            f"\t{profile.totals.unattributed_space} bytes in {unattributed} allocations unattributed"
        )
    stream.write("\n".join(lines) + "\n")


def _site_lines(site: CallSite, show_allocs: bool) -> list[str]:
    about = " (approximate)" if site.approximate else ""
    lines = [f"\t{site.inuse_space} bytes in {site.inuse_objects} allocations from stack{about}"]
    if show_allocs:
        lines += [f"\t\taddr = {block.address:x} size = {block.size}" for block in site.blocks]
    lines += [f"\t\t{frame_text(frame)}" for frame in site.frames]
    if site.end != ROOT:
        lines.append(f"\t\t[partial stack: {site.end}]")
    return lines
