"""Options for facts that a snapshot folder does not hold: how its files lay in the process."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from memleak_android.host.commands.options import flag, option
from memleak_android.host.errors import UsageError
from memleak_android.unwind.arch import ARCHES, arch_by_name
from memleak_android.unwind.file_reading import read_file
from memleak_android.unwind.maps import Mapping
from memleak_android.unwind.snapshot.folder import MemoryFile, SnapshotOptions

_SYMFILE = "JIT_SYMFILE"
_JSON_BYTES_MAX = 1 << 24


def _number(value: object, what: str) -> int:
    """A number of 64 bits. Text is hexadecimal with 0x, else decimal; JSON may have a number. Raises UsageError."""
    try:
        number = int(value, 0) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 64:
        raise UsageError(f"{what}: {value!r} is not a number", "write 0x7f0000000000 or 4096")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """How the files of a snapshot folder lay in the process. loader: a file with the same options."""

    arch: str | None = option(
        "--arch", click.Choice([arch.name for arch in ARCHES]), "Default: by the registers' names."
    )
    pac_mask: str | None = option(
        "--pac-mask MASK", None, "Bits of signed return addresses (NT_ARM_PAC_MASK)."
    )
    no_memory: bool = flag("--no-memory", "No memory was captured; read no *.data.")
    memory_files: tuple[str, ...] = option(
        "--memory-file NAME", None, "Read this *.data, not all of them (repeatable).", multiple=True
    )
    extra_memory: tuple[str, ...] = option(
        "--extra-memory NAME@START[:OFFSET[:SIZE]]",
        None,
        "A file's bytes lay at START (repeatable).",
        multiple=True,
    )
    extra_map: tuple[str, ...] = option(
        "--extra-map START-END:FLAGS:OFFSET:NAME",
        None,
        f"One more mapping; FLAGS r-x,{_SYMFILE} for a JIT's code (repeatable).",
        multiple=True,
    )
    jit_debug: bool = option(
        "--jit-debug/--no-jit-debug",
        None,
        "Use code that JIT compilers registered with debuggers, where captured [default: yes].",
        default=True,
    )
    loader: Path | None = option(
        "--loader FILE",
        click.Path(path_type=Path, exists=True, dir_okay=False),
        "A JSON object with these options (or expected.json, its `loader`).",
    )
    max_frames: int = option("--max-frames", click.IntRange(1, 65536), default=1024, show_default=True)
    frame_pointers: bool = flag("--frame-pointers", "Step by frame pointer even if no file confirms it.")
    like_libunwindstack: bool = flag(
        "--like-libunwindstack, --reduce-interrupted",
        "Report the frames around signals and calls to nowhere as that unwinder does.",
    )


def snapshot_options(options: LoaderOptions) -> SnapshotOptions:
    """The options, over those of --loader. Raises UsageError."""
    loader = _loader(options.loader)
    mask = options.pac_mask if options.pac_mask is not None else loader.get("pac_mask")
    files = options.memory_files or loader.get("memory_files")
    return SnapshotOptions(
        arch=arch_by_name(options.arch) if options.arch else None,
        signature_mask=None if mask is None else _number(mask, "--pac-mask"),
        with_memory=not (options.no_memory or loader.get("no_memory")),
        memory_files=tuple(_plain_name(name) for name in files) if files else None,
        extra_memory=(
            *(_memory_of_json(entry) for entry in loader.get("extra_memory", ())),
            *(_memory_of_text(text) for text in options.extra_memory),
        ),
        extra_maps=(
            *(_map_of_json(entry) for entry in loader.get("extra_maps", ())),
            *(_map_of_text(text) for text in options.extra_map),
        ),
        max_frames=options.max_frames,
        jit_debug=options.jit_debug and loader.get("jit_debug") is not False,
        frame_pointers=options.frame_pointers,
        like_libunwindstack=options.like_libunwindstack,
    )


def _loader(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        loaded = json.loads(read_file(path, _JSON_BYTES_MAX))
        loaded = loaded.get("loader", loaded)
        for key in ("extra_memory", "extra_maps", "memory_files"):
            if not isinstance(loaded.get(key, []), list):
                raise TypeError(f"{key} is not a list")
        return dict(loaded)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"could not read {path}: {reason}", "expected a JSON object") from None


def _plain_name(name: object) -> str:
    """Only files of the folder itself are read."""
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise UsageError(f"{name!r} is not a file of the folder", "write its plain name")
    return name


def _memory_of_text(text: str) -> MemoryFile:
    name, at, location = text.rpartition("@")
    numbers = [_number(word, "--extra-memory") for word in location.split(":")]
    if not at or len(numbers) > 3:
        raise UsageError(f"--extra-memory: {text!r}", "write NAME@START[:OFFSET[:SIZE]]")
    return MemoryFile(_plain_name(name), *numbers)


def _memory_of_json(entry: Any) -> MemoryFile:
    try:
        start, size = entry.get("start"), entry.get("size")
        return MemoryFile(
            _plain_name(entry["file"]),
            None if start is None else _number(start, "start"),
            _number(entry.get("file_offset", 0), "file_offset"),
            None if size is None else _number(size, "size"),
        )
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"extra_memory: {entry!r}", "expected file, and start, file_offset, size") from None


def _map_of_text(text: str) -> Mapping:
    match = re.fullmatch(r"([^-:]+)-([^-:]+):([^:]*):([^:]+):(.*)", text)
    if not match:
        raise UsageError(f"--extra-map: {text!r}", "write START-END:FLAGS:OFFSET:NAME")
    start, end, flags, offset, name = match.groups()
    return _mapping(start, end, flags.replace(",", " "), offset, name)


def _map_of_json(entry: Any) -> Mapping:
    try:
        return _mapping(entry["start"], entry["end"], entry["flags"], entry.get("offset", 0), entry["name"])
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"extra_maps: {entry!r}", "expected start, end, offset, flags, name") from None


def _mapping(start: object, end: object, flags: str, offset: object, name: str) -> Mapping:
    low, high = _number(start, "start"), _number(end, "end")
    if low >= high:
        raise UsageError(f"a mapping from {low:#x} to {high:#x}", "its end must lie behind its start")
    permissions, *rest = flags.split() or [""]
    return Mapping(low, high, permissions, _number(offset, "offset"), str(name), is_symfile=_SYMFILE in rest)
