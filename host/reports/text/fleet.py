"""FleetProfile as text, on one screen."""

from collections.abc import Iterator, Sequence
from typing import TextIO

from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.fleet_profile import (
    FleetProfile,
    OnlyOn,
    RecordingState,
    SitePrevalence,
    VersionChange,
)
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.reports.base import ReportOptions, bounded
from memleak_android.host.reports.text.answer import WORDS

_BROKEN_MAX = 20
_FRAMES_MAX = 4


def write(fleet: FleetProfile, stream: TextIO, options: ReportOptions) -> None:
    stream.writelines(line + "\n" for line in _lines(fleet, options.top or len(fleet.sites)))


def _lines(fleet: FleetProfile, top: int) -> Iterator[str]:
    yield from _head(fleet)
    yield from _changes(fleet.changes, top)
    yield from _only_on(fleet.only_on, top)
    yield from _sites(fleet.sites, top)
    yield from _quality(fleet)
    for cause, (count, recordings) in sorted(fleet.lost().items()):
        yield f"lost: {count:,} {bounded(cause)} in {recordings:,} recordings"
    for one in fleet.cache:
        if one.built or one.reused:
            yield f"cache: {one.built:,} {one.kind} built, {one.reused:,} reused, {one.fetched:,} of them fetched"
    for note in fleet.notes:
        yield f"note: {bounded(note)}"


def answers_line(fleet: FleetProfile) -> str:
    """`LEAKING  3 of 4 recordings; 1 NOT GROWING`; "" where none has an answer."""
    counts = [(count, WORDS[AnswerState(state)]) for state, count in fleet.answers.items()]
    if not counts:
        return ""
    (first, worst), *rest = counts
    others = "".join(f"; {count:,} {word}" for count, word in rest)
    return f"{worst}  {first:,} of {fleet.counted:,} recordings{others}"


def _head(fleet: FleetProfile) -> Iterator[str]:
    if answer := answers_line(fleet):
        yield answer
        yield ""
    models = {row.model or row.serial for row in fleet.recordings if row.is_counted} - {""}
    abis = sorted({row.abi for row in fleet.recordings if row.is_counted} - {""})
    devices = f" of {len(models)} kinds of devices" if models else ""
    yield f"{fleet.counted:,} recordings{devices}, {', '.join(abis) or 'ABI unknown'}"
    for one in fleet.versions:
        yield (
            f"  version {bounded(one.version)}: {one.recordings:,} recordings, {one.mean_space:,.0f} bytes outstanding each,"
            f" {one.median_duration_s:.0f} s"
        )
    yield ""


def _changes(changes: Sequence[VersionChange], top: int) -> Iterator[str]:
    if not changes:
        return
    yield "BETWEEN VERSIONS (bytes per recording; q: how many of these may be none)"
    for one in changes[:top]:
        yield (
            f"  {one.space:+15,.0f}  {one.change:<7} {bounded(one.old_version)} → {bounded(one.new_version)}"
            f"  {one.new_recordings} of {one.new_of} recordings, before {one.old_recordings} of {one.old_of}  q {one.q:.2g}"
        )
        yield from _frames(one.frames)
    yield from _more(len(changes) - top)
    yield ""


def _only_on(found: Sequence[OnlyOn], top: int) -> Iterator[str]:
    if not found:
        return
    yield "ON ONE KIND OF DEVICE ONLY"
    for one in found[:top]:
        name = one.dimension.replace("_", " ")
        yield f"  {one.mean_space:15,.0f}  {name} {bounded(one.value)}: {one.recordings} of {one.of} recordings, none elsewhere  p {one.p:.2g}"
        yield from _frames(one.frames)
    yield from _more(len(found) - top)
    yield ""


def _sites(sites: Sequence[SitePrevalence], top: int) -> Iterator[str]:
    yield "SITES BY BYTES PER RECORDING"
    yield f"  {'mean':>13} {'p50':>13} {'p90':>13} {'p99':>13}  {'shown by':>8}"
    for one in sites[:top]:
        yield f"  {one.mean_space:13,.0f} {one.p50:13,} {one.p90:13,} {one.p99:13,}  {one.share:8.1%}  {one.id}"
        yield from _frames(one.frames)
    yield from _more(len(sites) - top)


def _quality(fleet: FleetProfile) -> Iterator[str]:
    for state in (RecordingState.BROKEN, RecordingState.INCOMPLETE, RecordingState.DUPLICATE):
        counted = "" if state is RecordingState.INCOMPLETE else ", not counted"
        rows = [(row.source, row.reason) for row in fleet.recordings if row.state is state]
        yield from _listed(rows, f"{state}{counted}")
    clocks = [(row.source, row.clock) for row in fleet.recordings if row.clock]
    yield from _listed(clocks, "with clocks that disagree, counted")


def _listed(rows: Sequence[tuple[str, str]], what: str) -> Iterator[str]:
    if rows:
        yield ""
        yield f"{len(rows):,} {what}:"
    for source, why in rows[:_BROKEN_MAX]:
        yield f"  {bounded(source)}: {bounded(why)}"
    yield from _more(len(rows) - _BROKEN_MAX)


def _frames(frames: Sequence[Frame]) -> Iterator[str]:
    """Frames from the responsible function outward."""
    first = responsible_frame(frames)
    begin = frames.index(first) if first in frames else 0
    for frame in frames[begin : begin + _FRAMES_MAX]:
        name = bounded(frame.function) if frame.function else f"{frame.vaddr:#x}"
        line = f"  {bounded(module_name(frame.file))}:{frame.line}" if frame.file else ""
        yield f"{'':19}{name}{line} [{bounded(module_name(frame.module))}]"


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count:,} more (-T 0 shows all)"
