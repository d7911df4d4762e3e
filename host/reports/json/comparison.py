"""diff.json: `memleak-android/diff/1`. Fields are only added within a major."""

from __future__ import annotations

from typing import Literal, TextIO

import msgspec
from msgspec import UNSET, UnsetType

from memleak_android.host.profile.comparison import Change, Comparison, Held, SiteChange
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.json.types import ReportFrame
from memleak_android.host.reports.json.write import report_frame


class DiffHeld(msgspec.Struct, frozen=True):
    """Outstanding bytes and blocks."""

    space: int
    objects: int


class DiffSite(msgspec.Struct, frozen=True):
    """A site that changed; stderr_space is that of the difference, where one of both was sampled."""

    id: str
    change: Change
    kind: str
    old: DiffHeld
    new: DiffHeld
    frames: list[ReportFrame]
    stderr_space: int | UnsetType = UNSET


class Diff(msgspec.Struct, frozen=True):
    """Changes by growth, the largest first. unattributed: blocks without a stack, in no site."""

    schema: Literal["memleak-android/diff/1"]
    old: DiffHeld
    new: DiffHeld
    unattributed_old: DiffHeld
    unattributed_new: DiffHeld
    unchanged_sites: int
    sites: list[DiffSite]
    notes: list[str]


def write(comparison: Comparison, stream: TextIO, options: ReportOptions) -> None:
    """One JSON object, indented, with a final newline. All changes, whatever options.top says."""
    encoded = msgspec.json.encode(to_diff(comparison))
    stream.write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def to_diff(comparison: Comparison) -> Diff:
    old, new = comparison.old.totals, comparison.new.totals
    return Diff(
        "memleak-android/diff/1",
        old=DiffHeld(old.inuse_space, old.inuse_objects),
        new=DiffHeld(new.inuse_space, new.inuse_objects),
        unattributed_old=_held(comparison.unattributed[0]),
        unattributed_new=_held(comparison.unattributed[1]),
        unchanged_sites=comparison.unchanged,
        sites=[_site(change) for change in comparison.changes],
        notes=list(comparison.notes),
    )


def _held(held: Held) -> DiffHeld:
    return DiffHeld(held.space, held.objects)


def _site(change: SiteChange) -> DiffSite:
    return DiffSite(
        id=change.id,
        change=change.change,
        kind=change.kind,
        old=_held(change.old),
        new=_held(change.new),
        frames=[report_frame(frame) for frame in change.frames],
        stderr_space=UNSET if change.stderr_space is None else change.stderr_space,
    )
