"""What every report is asked, and the words several of them share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol, TextIO

from memleak_android.host.profile import CallSite, Frame, Profile

# C0, DEL and C1 controls, line separators, and lone surrogates (bytes of a path that are no UTF-8): names come
# from files and processes nobody vouches for, and must not steer the reader's terminal.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

ROOT = "ROOT"  # the TraceEnd of a complete stack


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """top: sites shown, 0 = all. combined_only: sums per stack only, no single allocations."""

    top: int = 10
    show_allocs: bool = False
    sort: Literal["size", "count"] = "size"
    combined_only: bool = False
    colour: bool = False


class Report(Protocol):
    """A way to write a Profile."""

    def __call__(self, profile: Profile, stream: TextIO, options: ReportOptions) -> None: ...


def printable(text: str) -> str:
    """The text with everything unprintable as \\xNN or \\uNNNN."""
    return UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)


def module_name(path: str) -> str:
    """The last part of a module's path, as people name it."""
    return PurePosixPath(path.removesuffix(" (deleted)")).name


def place(frame: Frame) -> str:
    """`function+0xoff`, `function (inlined)`, or for nameless code `module+0xvaddr`, else the address."""
    if frame.function and frame.inlined:
        return printable(f"{frame.function} (inlined)")
    if frame.function:
        return printable(f"{frame.function}+{frame.offset:#x}")
    if frame.module:
        return printable(f"{module_name(frame.module)}+{frame.vaddr:#x}")
    return f"{frame.address:#x}"


def frame_text(frame: Frame) -> str:
    """`function+0xoff  file:line [module]`, with what is known of it."""
    if frame.function and not frame.module and not frame.address:
        return printable(frame.function)  # the allocation function itself: called, not unwound
    parts = [place(frame)]
    if frame.file:
        parts.append(printable(f"{frame.file}:{frame.line}" if frame.line else frame.file))
    module = printable(module_name(frame.module)) if frame.module else "no mapping"
    return "  ".join(parts) + f" [{module}]"


def sorted_sites(sites: Iterable[CallSite], sort: Literal["size", "count"]) -> list[CallSite]:
    """Largest first; equal ones by the other number, then by id, so that reports are comparable."""

    def weight(site: CallSite) -> tuple[int, int, str]:
        size, count = -site.inuse_space, -site.inuse_objects
        return (size, count, site.id) if sort == "size" else (count, size, site.id)

    return sorted(sites, key=weight)


def amount(space: int, objects: int) -> str:
    """`4 bytes in 1 allocation`."""
    return f"{space:,} byte{'s' * (space != 1)} in {objects:,} allocation{'s' * (objects != 1)}"
