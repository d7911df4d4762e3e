"""`unwind`: the frames of captured stacks: of a snapshot folder, or of all samples of a perf.data."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from memleak_android.host.commands.loader_options import LoaderOptions, snapshot_options
from memleak_android.host.commands.options import CommonOptions, flag, option, takes_options
from memleak_android.host.commands.unwind_samples import print_samples
from memleak_android.host.commands.values import EXISTING
from memleak_android.host.console import printable, refuse_command, say
from memleak_android.host.symbols.names_in_file import FunctionNames, FunctionOffset, soname
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotFrame
from memleak_android.unwind.trace import TraceEnd

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
