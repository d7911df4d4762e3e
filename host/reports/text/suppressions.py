"""--gen-suppressions: a file that suppresses everything that counted, to be thinned out by hand."""

from typing import TextIO

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.field_types import NO_LEAKS
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.profile.suppressions import template_of
from memleak_android.host.reports.base import ReportOptions, amount_of, frame_text

FRAMES_SHOWN = 6


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Write a template for each responsible function of sites that counted, with its largest stack as a comment."""
    stream.write(
        "# Written by memleak-android --gen-suppressions. Each line suppresses every stack through it.\n"
    )
    written = set()
    for site in sorted(profile.sites, key=lambda site: -site.inuse_space):
        frame = responsible_frame(site.frames)
        if frame is None or not (frame.function or frame.module) or not _counts(site, profile):
            continue
        template = template_of(frame)
        if template in written:
            continue
        written.add(template)
        stream.write(f"\n# {amount_of([site])}\n")
        stream.writelines(f"#   {frame_text(frame)}\n" for frame in site.frames[:FRAMES_SHOWN])
        stream.write(f"leak:{template}\n")


def _counts(site: CallSite, profile: Profile) -> bool:
    if profile.gate is not None:
        return site.id in profile.gate.culprits
    return site.kind not in NO_LEAKS
