"""Data of the HTML page of many recordings."""

from collections.abc import Iterable, Sequence
from typing import Any

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.fleet_profile import (
    FleetProfile,
    OnlyOn,
    RecordingRow,
    RecordingState,
    SitePrevalence,
    VersionChange,
)
from memleak_android.host.reports.base import ROOT, bounded
from memleak_android.host.reports.export.exported import display_name
from memleak_android.host.reports.html.page_data import gate_and_measurement, stack_row
from memleak_android.host.reports.text.fleet import answers_line

SITES_MAX = 1_000
RECORDINGS_MAX = 5_000
CALLERS = 2  # named beside the function: many stacks end in the same one
# Recordings with a problem come first, so that they are listed even beyond RECORDINGS_MAX.
_ORDER = (RecordingState.BROKEN, RecordingState.INCOMPLETE, RecordingState.DUPLICATE, RecordingState.OK)


def fleet_data(fleet: FleetProfile) -> dict[str, Any]:
    counted = [row for row in fleet.recordings if row.is_counted]
    rows = sorted(fleet.recordings, key=lambda row: (_ORDER.index(row.state), not row.remark))
    states = [row.state for row in fleet.recordings]
    rest, ends = fleet.sites[SITES_MAX:], {site.id: site.end for site in fleet.sites}
    return {
        "title": _title(counted),
        "answer": answers_line(fleet),
        "state": next(iter(fleet.answers), ""),
        **gate_and_measurement(fleet.mean),
        "facts": _facts(fleet, counted),
        "notes": [bounded(note) for note in fleet.notes],
        "counted": len(counted),
        "meanSpace": sum(site.mean_space for site in fleet.sites),
        "states": {str(state): states.count(state) for state in RecordingState},
        "versions": [
            [bounded(one.version), one.recordings, one.mean_space, one.median_duration_s]
            for one in fleet.versions
        ],
        "sites": [_site(one) for one in fleet.sites[:SITES_MAX]],
        "sitesLeftOut": [len(rest), sum(site.mean_space for site in rest)],
        "changes": [_change(one) | {"end": ends.get(one.id, ROOT)} for one in fleet.changes[:SITES_MAX]],
        "changesInAll": len(fleet.changes),
        "onlyOn": [_only_on(one) | {"end": ends.get(one.id, ROOT)} for one in fleet.only_on[:SITES_MAX]],
        "onlyOnInAll": len(fleet.only_on),
        "recordings": [_recording(row) for row in rows[:RECORDINGS_MAX]],
        "recordingsInAll": len(rows),
    }


def _title(counted: Sequence[RecordingRow]) -> str:
    packages = sorted({row.package for row in counted} - {""})
    return ", ".join(map(bounded, packages[:3]))


def _facts(fleet: FleetProfile, counted: Sequence[RecordingRow]) -> list[list[str]]:
    without = sum(row.unattributed_space for row in counted) / max(len(counted), 1)
    facts = [
        ["versions", _listed(one.version for one in fleet.versions)],
        ["devices", _listed(sorted({row.model or row.serial for row in counted}))],
        ["ABIs", _listed(sorted({row.abi for row in counted}))],
        ["API levels", _listed(map(str, sorted({row.api_level for row in counted} - {0})))],
        ["without a stack", f"{without:,.0f} bytes per recording" if without else ""],
        *(
            [f"lost: {bounded(cause)}", f"{count:,} in {recordings:,} recordings"]
            for cause, (count, recordings) in sorted(fleet.lost().items())
        ),
        *([f"cache: {one.kind}", f"{one.built:,} built, {one.reused:,} reused"] for one in fleet.cache),
    ]
    return [[name, text] for name, text in facts if text]


def _listed(names: Iterable[str], most: int = 8) -> str:
    known = [bounded(name) for name in names if name]
    more = f" and {len(known) - most:,} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def _stack(one: SitePrevalence | VersionChange | OnlyOn) -> dict[str, Any]:
    frame = responsible_frame(one.frames)
    begin = one.frames.index(frame) + 1 if frame else 1
    return stack_row(one) | {"callers": [display_name(f) for f in one.frames[begin : begin + CALLERS]]}


def _site(one: SitePrevalence) -> dict[str, Any]:
    return _stack(one) | {
        "end": one.end,
        "mean": one.mean_space,
        "objects": one.mean_objects,
        "share": one.share,
        "recordings": one.recordings,
        "ranks": [one.p50, one.p90, one.p99],
        "versions": _listed(one.versions),
    }


def _change(one: VersionChange) -> dict[str, Any]:
    return _stack(one) | {
        "change": str(one.change),
        "between": [bounded(one.old_version), bounded(one.new_version)],
        "means": [one.old, one.new],
        "shown": [one.old_recordings, one.old_of, one.new_recordings, one.new_of],
        "q": one.q,
    }


def _only_on(one: OnlyOn) -> dict[str, Any]:
    return _stack(one) | {
        "dimension": one.dimension.replace("_", " "),
        "value": bounded(one.value),
        "recordings": one.recordings,
        "of": one.of,
        "mean": one.mean_space,
        "p": one.p,
    }


def _recording(row: RecordingRow) -> dict[str, Any]:
    return {
        "source": bounded(row.source),
        "state": str(row.state),
        "reason": bounded(row.remark),
        "version": bounded(row.version),
        "device": bounded(row.model or row.serial),
        "abi": bounded(row.abi),
        "api": row.api_level,
        "seconds": round(row.duration_s, 1),
        "space": row.inuse_space,
        "without": row.unattributed_space,
        "stacks": [row.complete, row.stacks],
        "lost": dict(row.lost),
    }
