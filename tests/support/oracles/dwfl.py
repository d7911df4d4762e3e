"""elfutils' libdwfl as an oracle for batches of samples: builds tests/unwind/oracle/dwfl_samples.c and feeds it."""

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind import AddressSpace, SampleBatch, TraceBatch
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.walk.plan import ModuleSource
from tests.support.gcc import gcc

_SOURCE = Path(__file__).resolve().parents[2] / "unwind" / "oracle" / "dwfl_samples.c"
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Chains:
    """n chains of lookup addresses, flat, and the CPU seconds of each pass over all of them."""

    offsets: NDArray[np.int64]
    lookup: NDArray[np.uint64]
    seconds: tuple[float, ...]

    def of(self, i: int) -> list[int]:
        return self.lookup[self.offsets[i] : self.offsets[i + 1]].tolist()


def missing() -> str:
    """Why the oracle cannot be had here, or ""."""
    if shutil.which("gcc") is None:
        return "gcc is not installed"
    if not Path("/usr/include/elfutils/libdwfl.h").exists():
        return "libdw-dev is not installed"
    return ""


def build(folder: Path) -> Path:
    """The program, compiled anew where its source is newer."""
    program = folder / "dwfl_samples"
    if not program.exists() or program.stat().st_mtime < _SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        gcc("-O2", "-Wall", "-Werror", "-o", program, _SOURCE, "-ldw")
    return program


def chains_of(traces: TraceBatch) -> Chains:
    """Our own in the same form."""
    return Chains(traces.offsets, traces.address - traces.is_return.astype(np.uint64), ())


def unwind_by_dwfl(
    program: Path,
    folder: Path,
    batches: Sequence[SampleBatch],
    spaces: Sequence[AddressSpace],
    modules: ModuleSource,
    stacks: Path,
    *,
    passes: int = 1,
) -> Chains:
    """Chains of x86_64 batches whose stack_bytes are the file `stacks`."""
    description, chains = folder / "samples.dwfl", folder / "chains.dwfl"
    with description.open("wb") as file:
        file.write(struct.pack("<Q", len(spaces)))
        for number, space in enumerate(spaces):
            file.write(_space(folder, number, space, modules))
        file.write(struct.pack("<Q", sum(map(len, batches))))
        for batch in batches:
            file.write(_samples(batch).tobytes())
    done = subprocess.run(
        [program, description, stacks, chains, str(passes)], check=True, capture_output=True, text=True
    )
    return _read(chains, tuple(int(line) / 1e9 for line in done.stdout.split()))


def _space(folder: Path, number: int, space: AddressSpace, modules: ModuleSource) -> bytes:
    found: dict[tuple[int, int], bytes] = {}
    for mapping in space.mappings:
        module = modules.module(number, mapping) if mapping.is_executable else None
        if module is not None and module.loads:
            first = min(segment.vaddr for segment in module.loads)
            address = (first & -_PAGE) - module.bias_of(mapping)
            path = str(_file_of(folder, module)).encode() + b"\0"
            entry = struct.pack("<QQ", address & (1 << 64) - 1, len(path)) + path + bytes(-len(path) % 8)
            found[id(module), address] = entry
    return struct.pack("<Q", len(found)) + b"".join(found.values())


def _file_of(folder: Path, module: Module) -> Path:
    """libdwfl opens files; the vdso is none."""
    path = Path(module.path)
    if not path.is_file():
        path = folder / f"{module.path.strip('[]')}.so"
        path.write_bytes(module.data)
    return path


def _samples(batch: SampleBatch) -> NDArray[np.uint64]:
    assert batch.arch.name == "x86_64"
    columns = np.empty((len(batch), 21), np.uint64)
    columns[:, 0] = batch.space
    for number in range(17):
        columns[:, 1 + number] = batch.registers[:, batch.arch.slot_of_dwarf[number]]
    columns[:, 18] = batch.stack_address
    columns[:, 19] = batch.stack_length
    columns[:, 20] = batch.stack_offset
    return columns


def _read(path: Path, seconds: tuple[float, ...]) -> Chains:
    words = np.fromfile(path, "<u8")
    starts, at = [], 0
    while at < len(words):
        starts.append(at)
        at += 1 + int(words[at])
    is_head = np.zeros(len(words), np.bool_)
    is_head[starts] = True
    lengths = words[is_head].astype(np.int64)
    return Chains(np.concatenate([[0], np.cumsum(lengths)]), words[~is_head], seconds)


def differences(ours: Chains, theirs: Chains) -> list[int]:
    """Numbers of the samples whose chains are not the same."""
    assert len(ours.offsets) == len(theirs.offsets)
    same = np.diff(ours.offsets) == np.diff(theirs.offsets)
    for i in np.flatnonzero(same).tolist():
        mine = ours.lookup[ours.offsets[i] : ours.offsets[i + 1]]
        same[i] = np.array_equal(mine, theirs.lookup[theirs.offsets[i] : theirs.offsets[i + 1]])
    return np.flatnonzero(~same).tolist()


def is_made_up(ours: Chains, theirs: Chains, i: int, space: AddressSpace) -> bool:
    """Whether theirs is ours and then goes on at a folder that is no code: elfutils steps by rbp where no file is known.

    The recording's own mappings are the third opinion. Such samples were taken in the page where the kernel steps over
    another tracer's uprobes, or below a return probe's trampoline.
    """
    mine, other = ours.of(i), theirs.of(i)
    if len(other) <= len(mine) or other[: len(mine)] != mine:
        return False
    mapping = space.find(other[len(mine)])
    return mapping is None or not mapping.is_executable


def joined(parts: Sequence[Chains]) -> Chains:
    """Several batches' chains as one."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Chains(
        np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([part.lookup for part in parts]), ()
    )
