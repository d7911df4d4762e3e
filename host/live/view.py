"""Converts a snapshot's profile to a message: the largest and fastest stacks, names cut and printable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from memleak_android.host.live.messages import FrameLine, SiteLine, Sites
from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.growth import Trend
from memleak_android.host.profile.profile import CallSite, LeakSum, Profile
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.profile.sort_orders import growth_rate
from memleak_android.host.reports.base import (
    ROOT,
    amount,
    amount_of,
    bounded,
    frame_name,
    leak_name,
    leaks_text,
)
from memleak_android.host.reports.text import messages
from memleak_android.host.reports.text.answer import STYLES, answer_text
from memleak_android.host.reports.text.growth import site_growth
from memleak_android.host.reports.text.past import ages_text
from memleak_android.host.reports.units import clock

SITES_MAX = 500  # in one message: the largest by bytes, by blocks and by growth
FRAMES_MAX = 20_000  # distinct frames in one message
NAME_MAX = 500

_VERDICTS = {
    Trend.GROWS: "grows",
    Trend.BURST: "one step",
    Trend.RISES: "rises",
    Trend.PLATEAU: "levelled off",
    Trend.STEADY: "steady",
}


_SiteKey = tuple[str, tuple[int, ...]]
_IDENTITY = attrgetter("module", "vaddr", "address", "function", "file", "line", "inlined")


@dataclass(frozen=True, slots=True)
class LeakScan:
    """Result of the last memory scan, by site_key(), and its time (nanoseconds of the session)."""

    elapsed_ns: int
    leaks: Mapping[_SiteKey, tuple[LeakSum, ...]]

    @classmethod
    def of(cls, profile: Profile) -> LeakScan:
        return cls(profile.duration_ns, {site_key(site): site.leaks for site in profile.sites})


def site_key(site: CallSite) -> _SiteKey:
    """Identifies a site within a session: stacks through the same functions by different lines share an id."""
    return site.id, tuple(frame.address for frame in site.frames)


def sites_message(profile: Profile, stacks: int, looked: LeakScan | None = None) -> Sites:
    """stacks: number of stacks that hold blocks; the profile may have the largest of them only."""
    table = _Frames()
    lines = tuple(_line(site, table, looked) for site in chosen_sites(profile.sites))
    totals = profile.totals
    return Sites(
        elapsed_s=profile.duration_ns / 1e9,
        space=totals.inuse_space,
        objects=totals.inuse_objects,
        stacks=stacks,
        unattributed_space=totals.unattributed_space,
        answer=answer_text(profile),
        style=STYLES[profile.answer.state] if profile.answer is not None else "",
        sites=lines,
        frames=tuple(table.lines),
        unit=profile.unit,
    )


def chosen_sites(sites: Iterable[CallSite], most: int = SITES_MAX) -> list[CallSite]:
    """Selects up to `most` sites: a third each by bytes, blocks and growth, the rest by bytes; largest first."""
    by_space = sorted(sites, key=lambda site: (-site.inuse_space, site.id))
    if len(by_space) <= most:
        return by_space
    third = most // 3
    by_rate = sorted(filter(growth_rate, by_space), key=growth_rate, reverse=True)[:third]
    by_count = sorted(by_space, key=lambda site: -site.inuse_objects)[:third]
    chosen = {id(site): site for site in (*by_rate, *by_count)}
    for site in by_space:
        if len(chosen) >= most:
            break
        chosen.setdefault(id(site), site)
    return [site for site in by_space if id(site) in chosen]


class _Frames:
    """Each distinct frame once, by number. Beyond the limit stacks end early."""

    def __init__(self) -> None:
        self.lines: list[FrameLine] = []
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, frame: Frame) -> int | None:
        key = _IDENTITY(frame)
        if key not in self._numbers:
            if len(self.lines) == FRAMES_MAX:
                return None
            self._numbers[key] = len(self.lines)
            self.lines.append(_frame_line(frame))
        return self._numbers[key]


def _frame_line(frame: Frame) -> FrameLine:
    is_call = frame.function and not frame.module and not frame.address  # of the allocation function itself
    source = bounded(frame.file, NAME_MAX) if frame.file else ""
    return FrameLine(
        function=bounded(frame.function, NAME_MAX) if is_call else frame_name(frame, NAME_MAX),
        source=f"{source}:{frame.line}" if source and frame.line else source,
        module=bounded(module_name(frame.module), NAME_MAX) if frame.module else "",
        way="" if is_call else bounded(frame.method),
    )


def _line(site: CallSite, table: _Frames, looked: LeakScan | None) -> SiteLine:
    leaks = looked.leaks.get(site_key(site), ()) if looked is not None else ()
    numbers = [table.number(frame) for frame in site.frames]
    known = numbers[: numbers.index(None)] if None in numbers else numbers
    own = responsible_frame(site.frames)
    at = next((i for i, frame in enumerate(site.frames) if frame is own), -1)
    end = "" if site.end == ROOT else f"{site.end}: {messages.ENDS.get(site.end, messages.END_UNKNOWN)}"
    return SiteLine(
        id=bounded(site.id),
        space=site.inuse_space,
        objects=site.inuse_objects,
        stderr_space=site.stderr_space,
        rate=growth_rate(site) * ((site.growth.run_s if site.growth else 0.0) or 60.0),
        growth=site_growth(site).partition(" since ")[0],
        oldest_s=site.oldest_ns / 1e9,
        verdict=_verdict(site, leaks),
        kind=bounded(site.kind),
        about=_about(site, leaks, looked),
        end="more frames than can be shown" if len(known) < len(numbers) else end,
        frames=tuple(number for number in known if number is not None),
        own=at if at < len(known) else -1,
    )


def _verdict(site: CallSite, leaks: Sequence[LeakSum]) -> str:
    """The worst kind of its blocks after a scan, else the trend, in a word or two."""
    if leaks:
        return leak_name(leaks[-1].kind)
    return _VERDICTS[site.growth.trend] if site.growth is not None else ""


def _about(site: CallSite, leaks: Sequence[LeakSum], looked: LeakScan | None) -> str:
    error = f" ± {site.stderr_space:,}" if site.stderr_space is not None else ""
    parts = [f"{amount_of([site])}{error}"]
    if site.alloc_space is not None and site.alloc_objects is not None:
        parts.append(f"allocated in all {amount(site.alloc_space, site.alloc_objects, site.unit)}")
    if growth := site_growth(site):
        parts.append(growth)
    if leaks and looked is not None:
        parts.append(f"at {clock(looked.elapsed_ns)} {leaks_text(leaks)}")
    parts.append(f"oldest {site.oldest_ns / 1e9:.1f} s{ages_text(site.ages)}")
    if site.approximate:
        parts.append("approximate: some of these blocks may belong to another stack")
    return "\n".join((*parts, f"id {bounded(site.id)}"))
