"""The formats that results can be written in, by name. Reports are imported when they are first asked for."""

import gzip
import io
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from memleak_android.host.profile.comparison import Comparison
from memleak_android.host.profile.fleet_profile import FleetProfile
from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.base import ReportOptions

_GZIP_LEVEL = 3  # of report.json, whose lines repeat: higher ones take longer than making it does
_GZIP_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a result.

    module: of this package, with a function `write`. suffix: of `report.SUFFIX` in the folder of -o.
    is_binary: nothing for a terminal. needs_blocks: wants the single blocks of each site in the Profile.
    """

    module: str
    suffix: str
    is_binary: bool = False
    needs_blocks: bool = False

    def write(
        self, result: Profile | Comparison | FleetProfile, stream: BinaryIO, options: ReportOptions
    ) -> None:
        """UTF-8 where it is text, gzipped where options say so. Raises UsageError where the format cannot hold the result."""
        write = import_module(f"memleak_android.host.reports.{self.module}").write
        if self.is_binary:
            write(result, stream, options)
            return
        with ExitStack() as stack:
            if options.is_gzipped:
                packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, stream, mtime=0)
                stack.callback(packed.close)
                stream = io.BufferedWriter(packed, _GZIP_PIECE)
                stack.callback(stream.flush)
            text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n", write_through=True)
            stack.callback(text.detach)
            write(result, text, options)


FORMATS: dict[str, Format] = {
    "text": Format("text.report", "txt"),
    "json": Format("json.report", "json"),
    "pprof": Format("export.pprof", "pb.gz", is_binary=True),
    "folded": Format("export.folded", "folded"),
    "speedscope": Format("export.speedscope", "speedscope.json"),
    "heaptrack": Format("export.heaptrack", "heaptrack.gz", is_binary=True, needs_blocks=True),
    "perfetto": Format("export.perfetto", "perfetto-trace", is_binary=True),
    "html": Format("html.report", "html"),
    "sarif": Format("export.sarif", "sarif"),
    "junit": Format("export.junit", "junit.xml"),
}


def format_of(path: Path | None, formats: Mapping[str, Format]) -> str | None:
    """The format that a file's name asks for: `x.html`, `x.json.gz`; None = it is a folder, or no name of one."""
    if path is None or path.is_dir():
        return None
    endings = {f".{form.suffix.removesuffix('.gz')}": name for name, form in formats.items()}
    found = [ending for ending in endings if path.name.removesuffix(".gz").endswith(ending)]
    return endings[max(found, key=len)] if found else None


COMPARISON_FORMATS: dict[str, Format] = {
    "text": Format("text.comparison", "txt"),
    "json": Format("json.comparison", "json"),
    "html": Format("html.report", "html"),
}

FLEET_FORMATS: dict[str, Format] = {
    "text": Format("text.fleet", "txt"),
    "json": Format("json.fleet", "json"),
    "html": Format("html.report", "html"),
}

SUPPRESSIONS = Format("text.suppressions", "supp")
