"""One Profile → its rows of the dataset."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from memleak_android.host.fleet.schema import FRAME, RECORDINGS, SITES
from memleak_android.host.profile.comparison import merged_sites
from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.fleet_profile import RecordingState
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.reports.base import bounded

_BUILD_IDS_MAX = 4096
_NOTES_MAX = 50
_I64_MAX = 2**63 - 1
_SUMS = ("inuse_space", "inuse_objects", "unattributed_space", "unattributed_objects")
_FRAME_COLUMNS = [column.name for column in FRAME]
_YEAR_9999_S = 253_402_300_799


def recording_row(profile: Profile, digest: str, source: str, size: int) -> pa.Table:
    """The row of a usable recording."""
    target, totals, origin = profile.target, profile.totals, profile.target.origin
    labels = dict(origin.labels)
    is_whole = profile.measurement is not Measurement.INCOMPLETE
    return _table(
        RECORDINGS,
        recording=digest,
        source=source,
        state=RecordingState.OK if is_whole else RecordingState.INCOMPLETE,
        reason="" if is_whole else bounded(next(iter(profile.notes), "something is missing")),
        bytes=size,
        taken_at=_time(profile.wall_clock_s),
        duration_s=profile.duration_ns / 1e9,
        package=bounded(target.package or labels.get("package", "")),
        command=bounded(target.command),
        version=bounded(origin.version or labels.get("version", "")),
        version_code=origin.version_code,
        model=bounded(origin.model or labels.get("model", "")),
        release=bounded(origin.release),
        api_level=_api_level(origin.api_level, labels.get("api_level", "")),
        abi=bounded(origin.abi or labels.get("abi", "") or target.arch),
        serial=bounded(target.serial or ""),
        tracer=bounded(target.tracer),
        sample_bytes=min(target.sample_bytes, _I64_MAX),
        answer=str(profile.answer.state) if profile.answer is not None else "",
        **{name: getattr(totals, name) for name in _SUMS},
        stacks=profile.unwinding.stacks,
        complete=profile.unwinding.complete,
        lost=sorted((cause, min(count, _I64_MAX)) for cause, count in totals.lost.items()),
        build_ids=sorted({module.build_id for module in profile.modules if module.build_id})[:_BUILD_IDS_MAX],
        labels=sorted(labels.items()),
        notes=[bounded(note) for note in profile.notes[:_NOTES_MAX]],
    )


def broken_row(source: str, size: int, digest: str, reason: str) -> pa.Table:
    """The row of an unusable recording."""
    row = {field.name: _EMPTY.get(str(field.type)) for field in RECORDINGS}
    row |= {"recording": digest, "source": source, "bytes": size}
    row |= {"state": RecordingState.BROKEN, "reason": bounded(reason)}
    return _table(RECORDINGS, **row)


_EMPTY: dict[str, object] = {"string": "", "int64": 0, "int32": 0, "double": 0.0}


def site_rows(profile: Profile, digest: str) -> pa.Table:
    """One row per site id."""
    sites = merged_sites(profile.sites).values()
    return pa.Table.from_pylist([_site(site, digest) for site in sites], schema=SITES)


def _site(site: CallSite, digest: str) -> dict[str, Any]:
    frame, growth = responsible_frame(site.frames), site.growth
    return {
        "recording": digest,
        "site": site.id,
        "kind": bounded(site.kind),
        "end": bounded(site.end),
        "inuse_space": min(site.inuse_space, _I64_MAX),
        "inuse_objects": min(site.inuse_objects, _I64_MAX),
        "alloc_space": site.alloc_space,
        "alloc_objects": site.alloc_objects,
        "stderr_space": site.stderr_space,
        "oldest_s": site.oldest_ns / 1e9,
        "approximate": site.approximate,
        "trend": str(growth.trend) if growth else None,
        "growth_bytes_per_s": growth.bytes_per_s if growth else None,
        "growth_low": growth.low if growth else None,
        "growth_high": growth.high if growth else None,
        "function": bounded(frame.function) if frame else "",
        "module": bounded(frame.module) if frame else "",
        "build_id": frame.build_id if frame else "",
        "frames": [_frame(frame) for frame in site.frames],
    }


def _frame(frame: Frame) -> dict[str, Any]:
    file = None if frame.file is None else bounded(frame.file)
    names = {"module": bounded(frame.module), "function": bounded(frame.function), "file": file}
    return {column: getattr(frame, column) for column in _FRAME_COLUMNS} | names


def _table(schema: pa.Schema, **row: object) -> pa.Table:
    return pa.Table.from_pylist([row], schema=schema)


def _time(seconds: float) -> datetime:
    """A device's time; an impossible one becomes the epoch."""
    return datetime.fromtimestamp(seconds if 0 <= seconds < _YEAR_9999_S else 0, UTC)


def _api_level(recorded: int, label: str) -> int:
    level = recorded or (int(label) if label.isascii() and label.isdecimal() and len(label) < 6 else 0)
    return level if level < 100_000 else 0
