"""The half of `unwind` that reads a perf.data."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from memleak_android.host.console import printable, say
from memleak_android.host.errors import ExitCode, RecordingError
from memleak_android.host.perf_data.assembly import stacks_of
from memleak_android.host.perf_data.code_locations import CodeLocations
from memleak_android.host.perf_data.files import RecordedFiles
from memleak_android.host.perf_data.sampled_stacks import first_joined
from memleak_android.host.perf_data.stacks import SampleReader
from memleak_android.host.reports.export.folded import SamplesFolded
from memleak_android.host.reports.json.samples import SamplesJson
from memleak_android.host.reports.text.samples import SamplesText
from memleak_android.host.symbols.symbolizer import Symbolizer, default_cache_dir
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.walk.batch import BatchUnwinder

_NOTES_MAX = 10


def print_samples(
    path: Path, form: str, symbol_dirs: Sequence[Path], *, join: bool, max_frames: int, frame_pointers: bool
) -> int:
    """Writes the stacks of all samples to stdout. form: text, folded or json. Returns the exit code.

    join: stacks that were cut are continued by what others of their thread show (unwind/walk/joining.py).

    Raises RecordingError where there is nothing to unwind.
    """
    reader = SampleReader(path)
    if not reader.events_with_stacks:
        raise RecordingError(
            f"{path} holds no stacks that could be unwound", "record with `perf record --call-graph dwarf`"
        )
    if not len(reader.order):
        raise RecordingError(f"{path} holds no sample", "record for longer, or another event")
    tables = TableCache(default_cache_dir() / "tables")
    files = RecordedFiles(reader.recording, reader.processes, symbol_dirs, tables)
    locations = CodeLocations(reader.processes.spaces, files, Symbolizer(symbol_dirs, default_cache_dir()))
    writer = _writer(form, sys.stdout, with_event=len(set(reader.order.event.tolist())) > 1)
    unwinder = BatchUnwinder(
        reader.processes.spaces, files, max_frames=max_frames, frame_pointers=frame_pointers
    )
    joined = 0
    for stacks in stacks_of(reader, unwinder, locations, join=join):
        writer.write(stacks)
        joined += len(first_joined(stacks))
    writer.close()
    sys.stdout.flush()
    if joined:
        say(f"{joined} cut stacks go on by other samples of their threads: a conclusion, not an observation")
    return _tell(reader, files)


def _writer(form: str, stream: TextIO, *, with_event: bool) -> SamplesText | SamplesFolded | SamplesJson:
    if form == "folded":
        return SamplesFolded(stream, with_event=with_event)
    return SamplesJson(stream) if form == "json" else SamplesText(stream)


def _tell(reader: SampleReader, files: RecordedFiles) -> int:
    """Warns on stderr about defects of the samples."""
    for note in files.notes[:_NOTES_MAX]:
        say(printable(note))
    if (more := len(files.notes) - _NOTES_MAX) > 0:
        say(f"{more} more files are not used")
    if reader.processes.lost:
        say(f"{reader.processes.lost} samples were lost while recording")
    if reader.recording.cut:
        say(
            f"{reader.recording.path} is cut or damaged: {reader.recording.cut} bytes at its end are no records"
        )
        return ExitCode.INCOMPLETE
    return 0
