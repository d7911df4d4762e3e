"""Folded stacks, the input of flame graph tools: `outermost;…;innermost weight`, a line per stack."""

from __future__ import annotations

from collections import Counter
from typing import TextIO

from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.export.exported import display_name, heap_sites


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Weights are outstanding bytes, with `--sort count` outstanding blocks. All sites, whatever options.top says."""
    weights: Counter[str] = Counter()
    for site in heap_sites(profile):
        names = (display_name(frame).replace(";", ":") for frame in reversed(site.frames))
        weights[";".join(names)] += site.inuse_space if options.sort != "count" else site.inuse_objects
    stream.writelines(f"{stack} {weight}\n" for stack, weight in sorted(weights.items()))
