"""The destinations of results: stdout, --json, -o DIR; and the exit code."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TextIO

from memleak_android.host.console import say
from memleak_android.host.errors import (
    IncompleteError,
    MemleakError,
    OutputExistsError,
    UsageError,
)
from memleak_android.host.profile.comparison import Comparison
from memleak_android.host.profile.fleet_profile import FleetProfile
from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FORMATS, Format, format_of
from memleak_android.unwind.file_writing import check, replacing

STDOUT = Path("-")
IN_FOLDER = ("text", "json")  # always
RECORDING = "recording"
RECORDING_SUFFIX = ".memleak"


@dataclass(frozen=True, slots=True)
class Destinations:
    """json: a file, or `-` for stdout instead of the text. out: a folder for report.SUFFIX and recording.memleak, or one file,
    whose name says which of them it gets.

    formats: more reports for the folder, or the one that the file, or stdout, gets instead.
    """

    json: Path | None = None
    out: Path | None = None
    force: bool = False
    formats: tuple[str, ...] = ()

    @property
    def file_format(self) -> str | None:
        """Of `out`; None = it is a folder."""
        if self.out is not None and self.out.suffix == RECORDING_SUFFIX and not self.out.is_dir():
            return RECORDING
        named = format_of(self.out, FORMATS)
        return self.formats[0] if named and self.formats else named

    @property
    def folder(self) -> Path | None:
        return None if self.file_format else self.out

    @property
    def recording(self) -> Path | None:
        if self.file_format == RECORDING:
            return self.out
        return self.folder / f"{RECORDING}{RECORDING_SUFFIX}" if self.folder else None

    @property
    def needs_blocks(self) -> bool:
        return any(
            FORMATS[name].needs_blocks for name in FORMATS if name in (*self.formats, self.file_format)
        )

    @property
    def on_stdout(self) -> str:
        """The format that stdout gets."""
        if self.json == STDOUT:
            return "json"
        return self.formats[0] if self.formats and not self.out else "text"

    def measuring(self, command: Sequence[str] | None) -> AbstractContextManager[object]:
        """See only_the_report_on_stdout()."""
        return nullcontext() if self.on_stdout == "text" else only_the_report_on_stdout(command)

    def files(self) -> list[tuple[Path, str]]:
        """The files written at the end, with their formats; without the recording."""
        found = []
        if self.folder:
            names = dict.fromkeys((*IN_FOLDER, *self.formats))
            found += [(self.folder / f"report.{FORMATS[name].suffix}", name) for name in names]
        elif self.out and self.file_format != RECORDING:
            found.append((self.out, self.file_format or "text"))
        if self.json and self.json != STDOUT:
            found.append((self.json, "json"))
        return found

    def prepare(self) -> None:
        """Makes the folders, before anything runs. Raises UsageError, also where a file exists without --force."""
        if self.out == STDOUT:
            check_new(self.out, self.force)
        room = 0 if self.file_format == RECORDING else 1
        if self.file_format and len(self.formats) > room:
            raise UsageError(
                f"{' and '.join(self.formats)}, and {self.out} is one file", "name a folder by -o DIR"
            )
        if len(self.formats) > 1 and not self.folder:
            raise UsageError("several --format, and one standard output", "name a folder for them by -o DIR")
        if self.formats and self.json == STDOUT and not self.folder:
            raise UsageError("--format and --json -, and one standard output", "name a file for one of them")
        check_stdout(self.on_stdout, FORMATS[self.on_stdout])
        for path in [path for path, _ in self.files()] + ([self.recording] if self.recording else []):
            check_new(path, self.force)


def result_path(text: str) -> Path:
    """A result to read: a file, or a folder of -o. Raises ValueError for a stream."""
    path = Path(text)
    if text in ("-", "/dev/stdin") and not path.is_file():
        raise ValueError("only files are read, not standard input; write it to one first")
    return path


def in_folder(path: Path, *, is_named: bool = False) -> Path:
    """What -o wrote into a folder. is_named: prefer the report, whose names outlive a rebuild of the program."""
    names = (f"{RECORDING}{RECORDING_SUFFIX}", "report.json")[:: -1 if is_named else 1]
    inside = [path / name for name in names if path.is_dir()]
    return next((each for each in inside if each.exists()), path)


def out_path(text: str) -> Path:
    """The value of a session's -o. Raises ValueError for a name that ends like a file's and names no format."""
    path = Path(text)
    is_file = path.suffix == RECORDING_SUFFIX or format_of(path, FORMATS)
    if is_file and text.endswith("/"):
        raise ValueError(f"{text} ends like a file; name the folder otherwise")
    if is_file or path.is_dir() or text.endswith("/") or not path.suffix[1:].strip("0123456789"):
        return path
    known = ", ".join((*(f".{form.suffix}" for form in FORMATS.values()), RECORDING_SUFFIX))
    raise ValueError(f"no format has the ending {path.suffix} (expected {known}); for a folder write {text}/")


def check_stdout(name: str, form: Format) -> None:
    """Raises UsageError for a binary format on a terminal."""
    if form.is_binary and sys.stdout.isatty():
        raise UsageError(f"{name} is not text for a terminal", "write it to a file by -o")


def check_new(path: Path, force: bool) -> None:
    """Makes missing folders. Raises OutputExistsError or UsageError where `path` cannot be written."""
    if path == STDOUT:
        raise UsageError(
            "- is not a file", "use --json - or --format NAME for standard output, or name a file"
        )
    try:
        check(path, force)
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", "name a file") from None
    except FileExistsError:
        raise OutputExistsError(path) from None
    except OSError as error:
        raise UsageError(f"could not write {path}: {error.strerror}", "use another folder") from None


class Destination:
    """A file, or stdout without one. Raises UsageError where it cannot be written."""

    def __init__(self, path: Path | None, name: str, form: Format, force: bool) -> None:
        self._path, self._form = path, form
        if path:
            check_new(path, force)
        else:
            check_stdout(name, form)

    def write(self, result: Profile | Comparison | FleetProfile, options: ReportOptions) -> None:
        if self._path:
            write_file(self._path, self._form, result, options)
        else:
            show(self._form, result, options)


def write_results(
    profile: Profile, destinations: Destinations, options: ReportOptions, shown: bool, stream: TextIO
) -> None:
    """Writes files first, all that can be: the reader of stdout may be gone. shown: stdout has the text already (interval
    prints).

    stream: for the text.
    """
    failures = list[MemleakError]()
    for path, name in destinations.files():
        try:
            write_file(path, FORMATS[name], profile, options)
        except MemleakError as error:
            failures.append(error)
    if destinations.on_stdout != "text" or not shown:
        name = destinations.on_stdout
        show(FORMATS[name], profile, options, stream if name == "text" else sys.stdout)
    for failure in failures[1:]:
        say(f"error: {failure}")
    if failures:
        raise failures[0]


@contextmanager
def only_the_report_on_stdout(command: Sequence[str] | None) -> Iterator[BinaryIO]:
    """Inside, standard output is standard error: for the command (None: nothing to say), a scenario, interval prints.

    Yields the real one. A terminal stays as it is.
    """
    if sys.stdout.isatty():
        yield sys.stdout.buffer
        return
    if command:
        say(
            "the output of the command goes to standard error, standard output is the report's; use --json FILE for both"
        )
    sys.stdout.flush()
    with open(os.dup(1), "wb") as kept:
        os.dup2(2, 1)
        try:
            yield kept
        finally:
            sys.stdout.flush()
            os.dup2(kept.fileno(), 1)


def show(
    form: Format,
    result: Profile | Comparison | FleetProfile,
    options: ReportOptions,
    stream: TextIO | None = None,
) -> None:
    """On stdout or another stream, in colour where that is a terminal."""
    stream = stream or sys.stdout
    stream.flush()
    form.write(result, stream.buffer, replace(options, colour=stream.isatty()))
    stream.flush()


def stream_of_text(command: Sequence[str] | None) -> TextIO:
    """stdout; stderr where a command's output goes to stdout and is read by another program."""
    return sys.stderr if command and not sys.stdout.isatty() else sys.stdout


def write_file(
    path: Path, form: Format, result: Profile | Comparison | FleetProfile, options: ReportOptions
) -> None:
    """Leaves no half report on a full disk; prints the path."""
    try:
        with replacing(path) as stream:
            form.write(result, stream, replace(options, is_gzipped=path.suffix == ".gz", verbose=2))
    except OSError as error:
        raise IncompleteError(f"could not write {path}: {error.strerror}", "use another folder") from None
    say(f"wrote {path}")
