"""speedscope's JSON (https://www.speedscope.app/file-format-schema.json): outstanding bytes, and blocks."""

from importlib.metadata import version
from typing import Any, TextIO

import msgspec

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.base import ReportOptions, bounded
from memleak_android.host.reports.export.exported import display_name, heap_sites

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Two profiles over the same stacks; the one that is shown first is that of `--sort`. All sites."""
    sites = heap_sites(profile)
    numbers: dict[tuple[str, str | None, int | None], int] = {}  # each function (with its line) once
    samples = [
        [numbers.setdefault(_key(frame), len(numbers)) for frame in reversed(site.frames)] for site in sites
    ]
    rows = (dict(zip(("name", "file", "line"), key, strict=True)) for key in numbers)
    frames = [{name: value for name, value in row.items() if value is not None} for row in rows]
    made = {
        "$schema": SCHEMA,
        "shared": {"frames": frames},
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


def _key(frame: Frame) -> tuple[str, str | None, int | None]:
    return display_name(frame), bounded(frame.file) if frame.file else None, frame.line
