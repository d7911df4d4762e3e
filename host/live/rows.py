"""The rows of the table of stacks: order, filter, and the columns that fit into a terminal's width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memleak_android.host.live.messages import FrameLine, SiteLine, Sites
from memleak_android.host.profile.field_types import BYTE
from memleak_android.host.reports.units import count_text


@dataclass(frozen=True, slots=True)
class Column:
    """width: minimum, in cells; the last gets the rest. from_width: narrower terminals omit the column."""

    key: str
    title: str
    width: int
    from_width: int
    text: Callable[[SiteLine, Sites], str]
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Order:
    """The sort column. is_reversed: against the default order (numbers largest first, names from A)."""

    key: str = "space"
    is_reversed: bool = False

    def by(self, key: str) -> Order:
        """Sorts by the column; the same column again reverses the order."""
        return Order(key, not self.is_reversed if key == self.key else False)


def own_frame(site: SiteLine, sites: Sites) -> FrameLine | None:
    """The responsible frame, else the innermost; None without a stack."""
    if not site.frames:
        return None
    return sites.frames[site.frames[max(site.own, 0)]]


def duration(seconds: float) -> str:
    """`7 s`, `3:07` or `2:03:07`: at most eight characters for ten days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = int(seconds)
    head = f"{whole // 3600}:{whole // 60 % 60:02}" if whole >= 3600 else str(whole // 60)
    return f"{head}:{whole % 60:02}"


def held_text(space: int, objects: int, unit: str) -> str:
    """`1,024 bytes in 2 blocks`, `12 descriptors`."""
    return count_text(space, unit) + (f" in {objects:,} blocks" if unit == BYTE else "")


def _function(site: SiteLine, sites: Sites) -> str:
    frame = own_frame(site, sites)
    name = frame.function if frame else "no stack"
    if frame is not None and name.startswith("<"):  # `<module>`, `<lambda>`: only the file tells them apart
        name += f" {_source(site, sites)}"
    return name if site.kind == "user" else f"[{site.kind}] {name}"


def _source(site: SiteLine, sites: Sites) -> str:
    frame = own_frame(site, sites)
    if frame is None:
        return ""
    return frame.source.rpartition("/")[2] or f"[{frame.module}]"


COLUMNS = (
    Column("space", "bytes", 12, 0, lambda site, sites: f"{site.space:,}"),
    Column("objects", "blocks", 8, 0, lambda site, sites: f"{site.objects:,}"),
    Column("rate", "growth", 22, 64, lambda site, sites: site.growth),
    Column("oldest", "oldest", 8, 108, lambda site, sites: duration(site.oldest_s)),
    Column("verdict", "verdict", 15, 96, lambda site, sites: site.verdict, False),
    Column("function", "function", 12, 0, _function, False),
    Column("source", "where", 20, 128, _source, False),
)

_KEYS: dict[str, Callable[[SiteLine, Sites], tuple[float | str, ...]]] = {
    "space": lambda site, sites: (-site.space, -site.objects),
    "objects": lambda site, sites: (-site.objects, -site.space),
    "rate": lambda site, sites: (-site.rate, -site.space),
    "oldest": lambda site, sites: (-site.oldest_s, -site.space),
    "verdict": lambda site, sites: (site.verdict or "~", -site.space),
    "function": lambda site, sites: (_function(site, sites).casefold(), -site.space),
    "source": lambda site, sites: (_source(site, sites).casefold(), -site.space),
}


def columns_for(width: int) -> list[Column]:
    return [column for column in COLUMNS if width >= column.from_width]


def ordered(sites: Sites, order: Order, wanted: str) -> list[SiteLine]:
    """Sites with `wanted` in a frame's function, file or module; equal ones are sorted by id."""
    found = [site for site in sites.sites if matches(site, sites.frames, wanted)]
    key = _KEYS[order.key]
    found.sort(key=lambda site: site.id)
    found.sort(key=lambda site: key(site, sites), reverse=order.is_reversed)
    return found


def matches(site: SiteLine, frames: Sequence[FrameLine], wanted: str) -> bool:
    """Ignores case; "" matches all."""
    if not wanted:
        return True
    wanted = wanted.casefold()
    texts = (
        text
        for number in site.frames
        for text in (frames[number].function, frames[number].source, frames[number].module)
    )
    return wanted in site.id or any(wanted in text.casefold() for text in texts)
