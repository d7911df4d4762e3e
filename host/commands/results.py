"""Where results go: stdout, --json, -o DIR; and the exit code that a verdict means."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from memleak_android.host.commands import say
from memleak_android.host.errors import IncompleteError, OutputExistsError, UsageError
from memleak_android.host.profile import Profile, Verdict
from memleak_android.host.reports import report_json, text
from memleak_android.host.reports.base import Report, ReportOptions

EXIT_CODES = {Verdict.OK: 0, Verdict.INCOMPLETE: 6, Verdict.LEAKS: 23}
FORMATS: dict[str, Report] = {"text": text.write, "json": report_json.write}
STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Destinations:
    """json: a file, or `-` for stdout in place of the text. folder: report.txt, report.json, recording.memleak."""

    json: Path | None = None
    folder: Path | None = None
    force: bool = False

    @property
    def recording(self) -> Path | None:
        return self.folder / "recording.memleak" if self.folder else None

    def files(self) -> list[tuple[Path, Report]]:
        """What is written at the end, the recording apart."""
        found = []
        if self.folder:
            found += [(self.folder / f"report.{suffix}", report) for suffix, report in _IN_FOLDER.items()]
        if self.json and self.json != STDOUT:
            found.append((self.json, report_json.write))
        return found

    def prepare(self) -> None:
        """Before anything runs: nothing existing will be overwritten unasked, and the folder can be made."""
        for path in [path for path, _ in self.files()] + ([self.recording] if self.recording else []):
            check_new(path, self.force)
        if self.folder:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"cannot make {self.folder}: {error.strerror}", "use another place"
                ) from None


_IN_FOLDER: dict[str, Report] = {"txt": text.write, "json": report_json.write}


def check_new(path: Path, force: bool) -> None:
    """Raises OutputExistsError or UsageError where `path` cannot be written."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file")
    if path.exists() and not force:
        raise OutputExistsError(path)


def write_results(profile: Profile, destinations: Destinations, options: ReportOptions, shown: bool) -> None:
    """shown: stdout has had its result already (interval prints)."""
    if destinations.json == STDOUT:
        show(report_json.write, profile, options)
    elif not shown:
        show(text.write, profile, options)
    for path, report in destinations.files():
        write_file(path, report, profile, options)
        say(f"wrote {path}")


def show(report: Report, profile: Profile, options: ReportOptions) -> None:
    report(profile, sys.stdout, replace(options, colour=sys.stdout.isatty()))
    sys.stdout.flush()


def write_file(path: Path, report: Report, profile: Profile, options: ReportOptions) -> None:
    """By a file beside it, so that a full disk leaves no half report."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            report(profile, stream, options)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise IncompleteError(f"cannot write {path}: {error.strerror}", "use another place") from None
