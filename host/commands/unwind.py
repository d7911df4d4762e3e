"""`unwind`: the frames of a captured stack, off-line."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import click

from memleak_android.host.commands import refuse_command, say
from memleak_android.host.elf_names import FunctionNames, NamedPlace, soname
from memleak_android.host.loader_options import loader_options, snapshot_options
from memleak_android.host.options import common_options
from memleak_android.unwind.module import Module
from memleak_android.unwind.snapshot import Snapshot, SnapshotFrame
from memleak_android.unwind.trace import TraceEnd

_SCHEMA = "memleak-android/unwind/1"


@click.command(short_help="Unwind a captured stack (a snapshot folder).")
@click.argument(
    "snapshot_dir", metavar="SNAPSHOT_DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema memleak-android/unwind/1).")
@loader_options
@common_options
@click.pass_context
def unwind(context: click.Context, /, snapshot_dir: Path, as_json: bool, **given: Any) -> int:
    """Prints the frames of a stack that was captured with its registers, mappings, memory and ELF files.

    SNAPSHOT_DIR holds regs.txt, maps.txt, *.data (an address of 8 bytes, then the memory there) and the ELF files
    that maps.txt names, as libunwindstack's own off-line cases do.
    """
    refuse_command(context)
    snapshot = Snapshot(snapshot_dir, snapshot_options(given))
    frames, end = snapshot.unwind()
    if snapshot.unknown_registers:
        say(f"not used, no registers of {snapshot.arch.name}: {', '.join(snapshot.unknown_registers)[:200]}")
    described = [_described(index, frame) for index, frame in enumerate(frames)]
    if as_json:
        result = {"schema": _SCHEMA, "arch": snapshot.arch.name, "end": end.name, "frames": described}
        click.echo(json.dumps(result, indent=1))
        return 0
    for frame in described:
        click.echo(_line(frame, 2 * snapshot.arch.word_bytes))
    if end is not TraceEnd.ROOT:
        say(f"the stack is not complete: {end.name}")
    return 0


def _described(index: int, frame: SnapshotFrame) -> dict[str, Any]:
    place = _name(frame)
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
        "function": place.function if place else None,
        "function_offset": place.offset if place else None,
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


def _name(frame: SnapshotFrame) -> NamedPlace | None:
    if frame.named_by is None:
        return None
    module, vaddr = frame.named_by
    return _functions(module).find(vaddr)


@cache
def _functions(module: Module) -> FunctionNames:
    return FunctionNames(module.image.data)


@cache
def _soname(module: Module) -> str:
    return soname(module)


def _line(frame: dict[str, Any], digits: int) -> str:
    """As libunwindstack and Android's tombstones write a frame."""
    line = f"  #{frame['index']:02} pc {int(frame['rel_pc'], 16):0{digits}x}  {frame['map_name']}"
    if frame["soname"]:
        line += f"!{frame['soname']}"
    if frame["elf_start_offset"]:
        line += f" (offset {frame['elf_start_offset']})"
    if frame["function"] is not None:
        offset = f"+{frame['function_offset']}" if frame["function_offset"] else ""
        line += f" ({frame['function']}{offset})"
    return line
