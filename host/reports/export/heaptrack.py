"""heaptrack's interpreted data, format version 3: for heaptrack_print and heaptrack_gui.

All numbers are hexadecimal, references count from 1. s: a string, X: the command, i: an instruction and its functions
(innermost first), t: a stack as instruction and parent stack, a: a size and its stack, +: one such block.
"""

import gzip
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import BinaryIO

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.reports.base import ReportOptions, amount, bounded
from memleak_android.host.reports.export.exported import display_name, heap_sites, locations

VERSION = "v 10400 3"  # of heaptrack, of the format
PAGE_BYTES = 4096  # the header wants it; nothing here is counted in pages
ONLY_OUTSTANDING = "[memleak-android: outstanding blocks only; calls, peak and temporary are not recorded]"


def write(profile: Profile, stream: BinaryIO, options: ReportOptions) -> None:
    """Each outstanding block with its size: needs the profile's single blocks (the format asks the view for them).

    Blocks without a stack are left out, which the command's line says. Raises UsageError where the others are not all
    known (sampled sessions, sites with more blocks than are kept).
    """
    sites = [site for site in heap_sites(profile) if site.id != "unattributed"]
    for site in sites:
        _refuse_unknown(site)
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0)
        if options.is_gzipped
        else nullcontext(stream) as out
    ):
        for line in _Lines().of(profile, sites):
            out.write(line.encode() + b"\n")


def _refuse_unknown(site: CallSite) -> None:
    if site.stderr_space is not None:
        what, advice = "estimates, it wants every block", "record without --sample-bytes"
    elif len(site.blocks) != site.inuse_objects:
        what = (
            f"{site.inuse_objects:,} blocks at site {site.id}, of which {len(site.blocks):,} are known singly"
        )
        advice = "use --format pprof, or a recording instead of report.json"
    else:
        return
    raise UsageError(f"heaptrack's format cannot hold this result: {what}", advice)


def _left_out(profile: Profile) -> str:
    """The sizes of single blocks without a stack are not known here."""
    totals = profile.totals
    if not totals.unattributed_objects:
        return ""
    return f" [left out: {amount(totals.unattributed_space, totals.unattributed_objects)} without a stack]"


class _Lines:
    """Numbers strings, instructions, stacks and sizes as they are first met."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._instructions: dict[tuple[Frame, ...], int] = {}
        self._stacks: dict[tuple[int, int], int] = {}
        self._sizes = 0

    def of(self, profile: Profile, sites: list[CallSite]) -> Iterator[str]:
        command = profile.target.package or profile.target.command or f"pid {profile.target.pid}"
        yield VERSION
        yield f"X {bounded(command)} {ONLY_OUTSTANDING}{_left_out(profile)}"
        yield f"I {PAGE_BYTES:x} 0"
        for site in sites:
            yield from self._site(site)
        yield f"c {profile.duration_ns // 10**6:x}"

    def _site(self, site: CallSite) -> Iterator[str]:
        stack = 0
        for chain in reversed(list(locations(site.frames))):
            if chain not in self._instructions:
                yield from self._instruction(chain)
            key = (self._instructions[chain], stack)
            if key not in self._stacks:
                self._stacks[key] = len(self._stacks) + 1
                yield f"t {key[0]:x} {key[1]:x}"
            stack = self._stacks[key]
        for size, count in sorted(Counter(block.size for block in site.blocks).items()):
            yield f"a {size:x} {stack:x}"
            yield from [f"+ {self._sizes:x}"] * count
            self._sizes += 1

    def _instruction(self, chain: tuple[Frame, ...]) -> Iterator[str]:
        outer = chain[-1]
        names = [(display_name(f), bounded(f.file) if f.file else "", f.line or 0) for f in chain]
        for text in (bounded(outer.module), *(part for name, file, _ in names for part in (name, file))):
            if text and text not in self._strings:
                self._strings[text] = len(self._strings) + 1
                yield f"s {len(text.encode()):x} {text}"
        numbers = [self._strings.get(bounded(outer.module), 0)]
        for name, file, line in names:
            numbers += [self._strings[name], self._strings.get(file, 0), line]
        self._instructions[chain] = len(self._instructions) + 1
        yield f"i {outer.address:x} " + " ".join(f"{number:x}" for number in numbers)
