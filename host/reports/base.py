"""Options of all reports, and the phrases that several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from memleak_android.host.console import printable
from memleak_android.host.profile.generated_code import code_label, is_generated
from memleak_android.host.profile.profile import LATE, Frame, LeakKind, LeakSum, Profile
from memleak_android.host.profile.sort_orders import Sort

ROOT = "ROOT"  # the TraceEnd of a complete stack
NAME_MAX = 1000  # characters of one name that are shown; mangled names of a megabyte exist


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """top: sites shown, 0 = all.
    combined_only: sums per stack only, no single allocations.
    is_gzipped: for a file named .gz.
    source_root: SARIF and annotations name source files relative to it.
    """

    top: int = 10
    show_allocs: bool = False
    sort: Sort = "size"
    combined_only: bool = False
    colour: bool = False
    is_gzipped: bool = False
    source_root: str = ""


class Report(Protocol):
    """A way to write a Profile."""

    def __call__(self, profile: Profile, stream: TextIO, options: ReportOptions) -> None: ...


def bounded(name: str, most: int = NAME_MAX) -> str:
    """printable(name); of a longer name the beginning and the length."""
    if len(name) <= most:
        return printable(name)
    return f"{printable(name[:most])}… ({len(name):,} characters)"


def module_name(path: str) -> str:
    """The last part of a module's path."""
    return path.removesuffix(" (deleted)").rstrip("/").rpartition("/")[2]


def relative_source(file: str, root: str) -> str:
    """A source file's path relative to the repository at `root`, if it is in there."""
    inside = f"{root.rstrip('/')}/"
    return file.removeprefix(inside) if root else file


def frame_name(frame: Frame, most: int = NAME_MAX) -> str:
    """`function+0xoff` or `function (inlined)`; of nameless code `module+0xvaddr`, `[JIT]`, `[generated code]` or the address."""
    if frame.function and frame.inlined:
        return f"{bounded(frame.function, most)} (inlined)"
    if frame.function:
        return f"{bounded(frame.function, most)}+{frame.offset:#x}"
    if is_generated(frame.module):
        return code_label(frame.module)
    if frame.module:
        return f"{bounded(module_name(frame.module), most)}+{frame.vaddr:#x}"
    return f"{frame.address:#x}"


def frame_text(frame: Frame) -> str:
    """`function+0xoff  file:line [module]`, as far as known; with ` (late)` if it was read after the call."""
    if frame.function and not frame.module and not frame.address:
        return bounded(frame.function)  # the allocation function itself: called, not unwound
    parts = [frame_name(frame)]
    if frame.file:
        parts.append(f"{bounded(frame.file)}:{frame.line}" if frame.line else bounded(frame.file))
    module = bounded(module_name(frame.module)) if frame.module else "no mapping"
    return "  ".join(parts) + f" [{module}]" + (" (late)" if frame.method == LATE else "")


def amount(space: int, objects: int) -> str:
    """`4 bytes in 1 allocation`."""
    return f"{space:,} byte{'s' * (space != 1)} in {objects:,} allocation{'s' * (objects != 1)}"


def leak_name(kind: LeakKind) -> str:
    """In valgrind's words."""
    return kind.replace("_", " ")


def leaks_text(leaks: Sequence[LeakSum]) -> str:
    """`definitely lost 4 bytes in 1 allocation, …`, the worst first; "" without --reachability."""
    return ", ".join(f"{leak_name(one.kind)} {amount(one.space, one.objects)}" for one in reversed(leaks))
