"""`unwind`: the frames of captured stacks: of a snapshot folder, or of all samples of a perf.data."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import click
from click.core import ParameterSource

from memleak_android.host.commands.loader_options import LoaderOptions, snapshot_options
from memleak_android.host.commands.options import CommonOptions, flag, option, takes_options
from memleak_android.host.commands.values import EXISTING
from memleak_android.host.console import printable, refuse_command, say
from memleak_android.host.errors import ExitCode, RecordingError
from memleak_android.host.perf_data.assembly import stacks_of
from memleak_android.host.perf_data.code_locations import CodeLocations
from memleak_android.host.perf_data.files import RecordedFiles
from memleak_android.host.perf_data.sampled_stacks import first_joined
from memleak_android.host.perf_data.stacks import SampleReader
from memleak_android.host.reports.export.folded import SamplesFolded
from memleak_android.host.reports.json.samples import SamplesJson
from memleak_android.host.reports.text.samples import SamplesText
from memleak_android.host.symbols.names_in_file import FunctionNames, FunctionOffset, soname
from memleak_android.host.symbols.symbolizer import Symbolizer, default_cache_dir
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotFrame
from memleak_android.unwind.trace import TraceEnd
from memleak_android.unwind.walk.batch import BatchUnwinder

_SCHEMA = "memleak-android/unwind/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOptions:
    """The form of the output, and options of a perf.data."""

    as_json: bool = flag(
        "--json", "Print JSON (schema memleak-android/unwind/1; for a perf.data unwind-samples/1)."
    )
    folded: bool = flag("--folded", "perf.data: stacks with their numbers of samples, for flame graphs.")
    symbols: tuple[Path, ...] = option(
        "--symbols DIR", EXISTING, "perf.data: more ELF files, by path below DIR or by name.", multiple=True
    )
    join: bool = flag("--join", "perf.data: continue truncated stacks by other samples of their thread.")


@click.command(short_help="Unwind captured stacks (a snapshot folder, a perf.data).")
@click.argument("path", metavar="SNAPSHOT_DIR|PERF_DATA", type=click.Path(path_type=Path, exists=True))
@takes_options
@click.pass_context
def unwind(
    context: click.Context, /, path: Path, form: FormOptions, loading: LoaderOptions, common: CommonOptions
) -> int:
    """Prints the frames of stacks that were captured with their registers.

    SNAPSHOT_DIR holds regs.txt, maps.txt, *.data (an address of 8 bytes, then the memory there) and the ELF files
    that maps.txt names, as libunwindstack's own off-line cases do.

    PERF_DATA is what `perf record --call-graph dwarf` wrote; it is printed as perf script does.
    """
    refuse_command(context)
    if not path.is_dir():
        _refuse_snapshot_options(context, path)
        name = "json" if form.as_json else "folded" if form.folded else "text"
        return print_samples(
            path,
            name,
            form.symbols,
            join=form.join,
            max_frames=loading.max_frames,
            frame_pointers=loading.frame_pointers,
        )
    if form.folded or form.symbols or form.join:
        raise click.UsageError("--folded, --symbols and --join are for a perf.data")
    snapshot = Snapshot(path, snapshot_options(loading))
    frames, end = snapshot.unwind()
    if snapshot.refused_files:
        names = ", ".join(snapshot.refused_files)[:200]
        say(f"could not read links that leave the folder: {names}; put the files there")
    if snapshot.unknown_registers:
        say(f"unknown registers of {snapshot.arch.name}: {', '.join(snapshot.unknown_registers)[:200]}")
    described = [_described(index, frame) for index, frame in enumerate(frames)]
    if form.as_json:
        result = {"schema": _SCHEMA, "arch": snapshot.arch.name, "end": end.name, "frames": described}
        click.echo(json.dumps(result, indent=1))
        return 0
    for frame in described:
        click.echo(printable(_line(frame, 2 * snapshot.arch.word_bytes)))
    if end is not TraceEnd.ROOT:
        say(f"the stack is not complete: {end.name}")
    return 0


def _refuse_snapshot_options(context: click.Context, path: Path) -> None:
    """Raises UsageError for options of snapshot folders."""
    of_perf_data = {"path", "as_json", "folded", "symbols", "join", "max_frames", "frame_pointers"}
    for name in context.params:
        if (
            name not in of_perf_data | {"quiet", "verbose", "force"}
            and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ):
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for snapshot folders, and {path} is not one"
            )


def _described(index: int, frame: SnapshotFrame) -> dict[str, Any]:
    named = _name(frame)
    elf, mapping = frame.elf, frame.mapping
    start = elf.start_offset if elf is not None else 0
    library = ""
    if elf is not None and elf.module is not None and start and not elf.from_memory:
        library = _soname(elf.module)
    return {
        "index": index,
        "pc": hex(frame.lookup),
        "sp": hex(frame.sp),
        "rel_pc": hex(frame.rel_pc),
        "function": named.function if named else None,
        "function_offset": named.offset if named else None,
        "map_name": _map_name(frame),
        "soname": library or None,
        "elf_start_offset": hex(start) if start else None,
        "build_id": elf.module.build_id or None if elf is not None and elf.module is not None else None,
        "method": frame.method.name.lower(),
        "map_start": hex(mapping.start) if mapping is not None else None,
    }


def _map_name(frame: SnapshotFrame) -> str:
    if frame.mapping is None:
        return "<unknown>"
    return frame.mapping.path or f"<anonymous:{frame.mapping.start:x}>"


def _name(frame: SnapshotFrame) -> FunctionOffset | None:
    if frame.named_by is None:
        return None
    module, vaddr = frame.named_by
    return _functions(module).find(vaddr)


_functions = cache(FunctionNames)
_soname = cache(soname)


def _line(frame: dict[str, Any], digits: int) -> str:
    """Formats a frame like libunwindstack and Android's tombstones."""
    line = f"  #{frame['index']:02} pc {int(frame['rel_pc'], 16):0{digits}x}  {frame['map_name']}"
    if frame["soname"]:
        line += f"!{frame['soname']}"
    if frame["elf_start_offset"]:
        line += f" (offset {frame['elf_start_offset']})"
    if frame["function"] is not None:
        offset = f"+{frame['function_offset']}" if frame["function_offset"] else ""
        line += f" ({frame['function']}{offset})"
    return line


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
