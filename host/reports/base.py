"""Options of all reports, and the phrases that several of them share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.color import ColorSystem
from rich.style import Style

from memleak_android.host.console import printable
from memleak_android.host.profile.field_types import BYTE, common_unit
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, LeakKind, LeakSum, Profile
from memleak_android.host.profile.runtime_sites import SCRIPT_FRAMES, code_label, is_generated, module_name
from memleak_android.host.profile.sort_orders import Sort
from memleak_android.host.reports.units import count_text

ROOT = "ROOT"  # the TraceEnd of a complete stack
NAME_MAX = 1000  # characters of one name that are shown; mangled names of a megabyte exist


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """top: sites shown, 0 = all.
    combined_only: sums per stack only, no single allocations.
    is_gzipped: for a file named .gz.
    source_root: reports name source files relative to it.
    verbose: 1 = stacks, not places; 2 = with every frame.
    """

    top: int = 10
    show_allocs: bool = False
    sort: Sort = "size"
    combined_only: bool = False
    colour: bool = False
    is_gzipped: bool = False
    source_root: str = ""
    verbose: int = 0


class Report(Protocol):
    """A way to write a Profile."""

    def __call__(self, profile: Profile, stream: TextIO, options: ReportOptions) -> None: ...


def bounded(name: str, most: int = NAME_MAX) -> str:
    """printable(name); of a longer name the beginning and the length."""
    if len(name) <= most:
        return printable(name)
    return f"{printable(name[:most])}… ({len(name):,} characters)"


def relative_source(file: str, root: str) -> str:
    """A source file's path relative to the repository at `root`, if it is in there."""
    inside = f"{root.rstrip('/')}/"
    return file.removeprefix(inside) if root else file


def frame_name(frame: Frame, most: int = NAME_MAX) -> str:
    """`function+0xoff` or `function (inlined)`; of nameless code `module+0xvaddr`, `[JIT]`, `[generated code]` or the address."""
    if frame.function and frame.module in SCRIPT_FRAMES:
        return bounded(frame.function, most)
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
    """`function+0xoff  file:line [module]`, as far as known."""
    if frame.function and not frame.module and not frame.address:
        return bounded(frame.function)  # the allocation function itself: called, not unwound
    parts = [frame_name(frame)]
    if frame.file:
        parts.append(source_line(frame))
    if frame.module in SCRIPT_FRAMES:
        return "  ".join(parts)
    module = bounded(module_name(frame.module)) if frame.module else "no mapping"
    return "  ".join(parts) + f" [{module}]"


def source_line(frame: Frame | None) -> str:
    """`file:line`, `file`, or "" where it is unknown."""
    if frame is None or not frame.file:
        return ""
    return f"{bounded(frame.file)}:{frame.line}" if frame.line else bounded(frame.file)


def amount_of(sites: Sequence[CallSite]) -> str:
    """Bytes and blocks of all sites, as text; `freed at exit` of sites that grew and hold nothing."""
    unit, objects = common_unit(site.unit for site in sites), sum(site.inuse_objects for site in sites)
    if sites and not objects:
        return "freed at exit"
    return amount(sum(site.inuse_space for site in sites), objects, unit)


def outstanding(site: CallSite) -> str:
    return f"{amount_of([site])}{' outstanding' * bool(site.inuse_objects)}"


def amount(space: int, objects: int, unit: str = BYTE) -> str:
    """`4 bytes in 1 allocation`; what is counted is one each: `12 descriptors`."""
    held = count_text(space, unit)
    return f"{held} in {count_text(objects, 'allocation')}" if unit == BYTE else held


def write_styled(lines: Iterable[tuple[str, str]], stream: TextIO, colour: bool) -> None:
    """Writes lines with rich's styles, which only terminals get."""
    for style, line in lines:
        if colour and style:
            line = Style.parse(style).render(line, color_system=ColorSystem.STANDARD)
        stream.write(line + "\n")


def leak_name(kind: LeakKind) -> str:
    """In valgrind's words."""
    return kind.replace("_", " ")


def leaks_text(leaks: Sequence[LeakSum]) -> str:
    """`definitely lost 4 bytes in 1 allocation, …`, the worst first; "" without --reachability."""
    return ", ".join(f"{leak_name(one.kind)} {amount(one.space, one.objects)}" for one in reversed(leaks))
