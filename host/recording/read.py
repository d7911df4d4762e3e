"""Files → profiles: recordings, finished or cut, and report.json."""

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from io import BufferedIOBase
from pathlib import Path

from memleak_android.host.analysis.held_by_span import HeldBySpan, Span, held_by_span
from memleak_android.host.analysis.hook_coverage import hooked_missing, hooked_remarks
from memleak_android.host.analysis.pipeline import View, make_profile
from memleak_android.host.analysis.process_sums import process_names
from memleak_android.host.analysis.sites import ProgressCallback, no_progress
from memleak_android.host.errors import RecordingError, UsageError
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import Survivors, find_survivors, recorded_survivors
from memleak_android.host.profile.coverage import Condition
from memleak_android.host.profile.profile import Profile
from memleak_android.host.recording.file import Recording
from memleak_android.host.reports.json.report import read_report
from memleak_android.host.stacks.file_identities import RecordedFiles
from memleak_android.host.stacks.modules import (
    FileFinder,
    LinkedModules,
    LocalFiles,
    ModuleFiles,
    own_vdso,
    reopen,
)
from memleak_android.host.stacks.stack_unwinder import StackUnwinder
from memleak_android.host.symbols.build_cache import BuildCache
from memleak_android.host.symbols.symbolizer import default_cache_dir
from memleak_android.host.wire.blocks import Collector
from memleak_android.host.wire.session import coverage_field
from memleak_android.unwind.file_reading import opened

REPORT_BYTES_MAX = 1 << 30
_GROWTH_MAX, _GROWTH_FREE = 100, 64 << 20  # times the file, and bytes beside; deflate reaches 1032 times


def read_profile(
    path: Path,
    view: View,
    symbol_dirs: Sequence[Path] = (),
    jobs: int = 1,
    progress: ProgressCallback = no_progress,
    *,
    whole: bool = False,
    cache: BuildCache | None = None,
    only_pid: int | None = None,
) -> Profile:
    """For a report.json, `view` and `symbol_dirs` have no effect.

    whole: refuse a cut recording. cache: None = the user's. only_pid: of several recorded processes only this one.
    Raises UsageError or RecordingError if the file is neither.
    """
    if is_report(path):
        return read_report(_read_bytes(path), str(path))
    cache = cache or BuildCache(default_cache_dir())
    with closing(Recording(path)) as recording:
        capture, missing = _read(recording, progress)
        if whole and recording.broken:
            raise RecordingError(f"it is cut or damaged: {recording.broken.message}")
        if _is_linked(capture):  # other sessions have recorded these themselves
            capture.remarks[:0] = hooked_remarks(capture)  # before its marks: not all of many are shown
            answers = {Condition.FUNCTIONS: [], Condition.PROGRAMS: hooked_missing(capture)}
            capture.session |= {"coverage": coverage_field(answers)}
        if only_pid is not None:
            _choose(capture, only_pid, path)
        survivors = _survivors(capture, recording, jobs, cache)
        symbolizer = cache.symbolizer(tuple(symbol_dirs), os.environ)
        return make_profile(capture, survivors, symbolizer, view, missing, progress)


def read_by_span(path: Path, spans: Sequence[Span], jobs: int = 1) -> tuple[Profile, HeldBySpan]:
    """The profile of a recording, and what it holds of each span. Raises UsageError or RecordingError."""
    cache = BuildCache(default_cache_dir())
    with closing(Recording(path)) as recording:
        capture, missing = _read(recording, no_progress)
        survivors = _survivors(capture, recording, jobs, cache)
        symbolizer = cache.symbolizer((), os.environ)
        profile = make_profile(capture, survivors, symbolizer, View(), missing)
        return profile, held_by_span(capture, survivors, symbolizer, spans)


def is_report(path: Path) -> bool:
    """Whether the file is a report.json, gzipped or not. An unreadable file is not: the reader of recordings reports it."""
    try:
        with _decompressed(path) as (file, _):
            return file.read(64).lstrip()[:1] == b"{"
    except _UNREADABLE:
        return False


_UNREADABLE = (OSError, EOFError, zlib.error)  # gzip.BadGzipFile is an OSError


@contextmanager
def _decompressed(path: Path) -> Iterator[tuple[BufferedIOBase, int]]:
    """The file, decompressed if it begins with gzip's magic number (RFC 1952), and its size on disk in bytes."""
    with opened(path) as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield gzip.GzipFile(fileobj=file) if is_gzipped else file, os.fstat(file.fileno()).st_size


def _read_bytes(path: Path) -> bytes:
    try:
        with _decompressed(path) as (file, size):
            limit = min(REPORT_BYTES_MAX, size * _GROWTH_MAX + _GROWTH_FREE)
            data = file.read(limit + 1)
    except _UNREADABLE as error:
        raise UsageError(f"{path} cannot be read: {error}", "write it again with --json FILE") from None
    if len(data) > limit:
        raise UsageError(f"{path} is larger than {limit:,} bytes", "use the recording")
    return data


def _read(recording: Recording, progress: ProgressCallback) -> tuple[Capture, list[str]]:
    capture, size = Capture(), max(recording.path.stat().st_size, 1)
    for offset, block in recording.blocks():
        progress("reading", min(offset / size, 1.0))
        capture.add(block, offset)
    broken = recording.broken
    return capture, [f"{recording.path} is cut or damaged: {broken.message}"] if broken else []


def _choose(capture: Capture, pid: int, path: Path) -> None:
    live = capture.whole.live["pid"] if capture.whole is not None else ()
    if pid not in live:
        raise UsageError(
            f"no process {pid} holds anything in {path}", "its report has a table of those that do"
        )
    name = process_names(capture).get(pid, "")
    capture.session |= {"only_pids": [pid], "pid": pid, "whole_machine": False, "command": name}


def _survivors(capture: Capture, recording: Recording, jobs: int, cache: BuildCache) -> Survivors:
    copies = partial(cache.device_copies, capture.session.target.serial)
    if capture.is_finished:
        return recorded_survivors(capture, lambda path, build_id: reopen(path, build_id, copies(build_id)))
    files: ModuleFiles
    if _is_linked(capture):
        files = LinkedModules(capture.modules, copies)
    else:
        files = ModuleFiles(_finder(capture, cache), cache.tables())
    unwinder = StackUnwinder(recording.read_block, files, capture.kernel_symbols, capture.python, jobs=jobs)
    return find_survivors(capture, unwinder, with_past=True)


def _is_linked(capture: Capture) -> bool:
    return capture.hello is not None and int(capture.hello["collector"]) == Collector.LINKED


def _finder(capture: Capture, cache: BuildCache) -> FileFinder:
    """For a cut recording: finds files of the machine where it was made."""
    if capture.session.target.serial:
        return RecordedFiles(capture.files, partial(cache.device_copies, capture.session.target.serial))
    return LocalFiles(is_running=False, vdso=own_vdso())
