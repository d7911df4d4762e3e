"""FleetProfile as JSON; its schema is fleet.schema.json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, TextIO

import msgspec
from msgspec import Meta

from memleak_android.host.profile.comparison import Change
from memleak_android.host.profile.fleet_profile import (
    FleetProfile,
    OnlyOn,
    RecordingState,
    SitePrevalence,
    VersionChange,
)
from memleak_android.host.profile.profile import Frame
from memleak_android.host.reports.base import ReportOptions, bounded

SCHEMA: Literal["memleak-android/fleet/1"] = "memleak-android/fleet/1"
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class FleetFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    module: str
    function: str
    build_id: str = ""
    vaddr: str = ""
    file: str | None = None
    line: int | None = None


class FleetRecording(msgspec.Struct, frozen=True):
    source: str
    digest: str
    state: RecordingState
    reason: str
    bytes: Count
    taken_at_s: float
    duration_s: float
    package: str
    version: str
    version_code: Count
    model: str
    api_level: Count
    abi: str
    serial: str
    inuse_space: Count
    unattributed_space: Count
    unattributed_objects: Count
    stacks: Count
    complete: Count
    lost: Annotated[dict[str, Count], Meta(description="by cause, as in report.json")]
    clock: Annotated[str, Meta(description="why taken_at_s is no time; empty where it can be one")] = ""


class FleetVersion(msgspec.Struct, frozen=True):
    version: str
    recordings: Count
    mean_space: float
    median_duration_s: float


class FleetSite(msgspec.Struct, frozen=True):
    id: str
    kind: str
    end: str
    recordings: Count
    share: Share
    mean_space: float
    mean_objects: float
    p50: Count
    p90: Count
    p99: Count
    versions: list[str]
    frames: list[FleetFrame]


class FleetChange(msgspec.Struct, frozen=True):
    id: str
    kind: str
    change: Change
    old_version: str
    new_version: str
    old: Annotated[float, Meta(description="mean bytes per recording")]
    new: float
    old_recordings: Count
    new_recordings: Count
    old_of: Count
    new_of: Count
    q: Annotated[float, Meta(ge=0, le=1, description="Benjamini-Hochberg, of Mann-Whitney")]
    frames: list[FleetFrame]


class FleetOnlyOn(msgspec.Struct, frozen=True):
    id: str
    kind: str
    dimension: str
    value: str
    recordings: Count
    of: Count
    mean_space: float
    p: Share
    frames: list[FleetFrame]


class FleetCache(msgspec.Struct, frozen=True):
    kind: str
    built: Annotated[int, Meta(ge=0, description="made in this run, or asked of a server")]
    reused: Annotated[int, Meta(ge=0, description="there already, once for each recording that needed it")]
    fetched: Annotated[int, Meta(ge=0, description="of them brought from the store of --cache to a worker")]


class FleetReport(msgspec.Struct, frozen=True):
    schema: Literal["memleak-android/fleet/1"]
    counted: Count
    recordings: list[FleetRecording]
    versions: list[FleetVersion]
    sites: list[FleetSite]
    changes: list[FleetChange]
    only_on: list[FleetOnlyOn]
    notes: list[str]
    cache: Annotated[list[FleetCache], Meta(description="of this run; empty without --cache")] = []


def write(fleet: FleetProfile, stream: TextIO, options: ReportOptions) -> None:
    """One JSON object, indented, with a final newline. All sites, whatever options.top says."""
    encoded = msgspec.json.encode(to_report(fleet))
    stream.write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12), as shipped in fleet.schema.json."""
    schema = msgspec.json.schema(FleetReport)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


def to_report(fleet: FleetProfile) -> FleetReport:
    return FleetReport(
        schema=SCHEMA,
        counted=fleet.counted,
        recordings=[FleetRecording(**_fields(row) | {"lost": dict(row.lost)}) for row in fleet.recordings],
        versions=[FleetVersion(**_fields(one)) for one in fleet.versions],
        sites=[FleetSite(**_with_frames(one)) for one in fleet.sites],
        changes=[FleetChange(**_with_frames(one)) for one in fleet.changes],
        only_on=[FleetOnlyOn(**_with_frames(one)) for one in fleet.only_on],
        notes=[bounded(note) for note in fleet.notes],
        cache=[FleetCache(**_fields(one)) for one in fleet.cache],
    )


def _fields(one: Any) -> dict[str, Any]:
    return {name: bounded(value) if type(value) is str else value for name, value in asdict(one).items()}


def _with_frames(one: SitePrevalence | VersionChange | OnlyOn) -> dict[str, Any]:
    fields = {name: getattr(one, name) for name in one.__dataclass_fields__}
    listed = {name: list(map(bounded, value)) for name, value in fields.items() if name == "versions"}
    return fields | listed | {"frames": [_frame(frame) for frame in one.frames]}


def _frame(frame: Frame) -> FleetFrame:
    vaddr = "" if frame.function else f"{frame.vaddr:#x}"
    file = None if frame.file is None else bounded(frame.file)
    return FleetFrame(bounded(frame.module), bounded(frame.function), frame.build_id, vaddr, file, frame.line)
