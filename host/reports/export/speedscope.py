"""speedscope's JSON (https://www.speedscope.app/file-format-schema.json): outstanding bytes, and blocks."""

from importlib.metadata import version
from typing import Any, TextIO

import msgspec

from memleak_android.host.profile.profile import Frame, Profile
from memleak_android.host.reports.base import ReportOptions, bounded
from memleak_android.host.reports.export.exported import display_name, heap_sites

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Two profiles over the same stacks; the one that is shown first is that of `--sort`. All sites."""
    sites = heap_sites(profile)
    frames = _FrameTable()
    samples = [[frames.number(frame) for frame in reversed(site.frames)] for site in sites]
    made = {
        "$schema": SCHEMA,
        "shared": {"frames": frames.rows},
        "profiles": [
            _sampled("outstanding bytes", "bytes", samples, [site.inuse_space for site in sites]),
            _sampled("outstanding blocks", "none", samples, [site.inuse_objects for site in sites]),
        ],
        "name": bounded(profile.target.package or profile.target.command or f"pid {profile.target.pid}"),
        "activeProfileIndex": 0 if options.sort != "count" else 1,
        "exporter": f"memleak-android@{version('memleak-android')}",
    }
    stream.write(msgspec.json.encode(made).decode() + "\n")


def _sampled(name: str, unit: str, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


class _FrameTable:
    """Each function (with its line) once."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, str | None, int | None], int] = {}

    def number(self, frame: Frame) -> int:
        key = (display_name(frame), bounded(frame.file) if frame.file else None, frame.line)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            row = {"name": key[0], "file": key[1], "line": key[2]}
            self.rows.append({name: value for name, value in row.items() if value is not None})
        return self._numbers[key]
