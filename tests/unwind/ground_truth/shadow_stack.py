"""The C side of the ground truth (shadow.c): built here, its structures, and its samples as arrays."""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

_U64, _PTR = ctypes.c_uint64, ctypes.c_void_p
_DEPTH_MAX, _REGIONS_MAX, _REGISTERS_MAX, _SEEN_BITS = 4096, 16, 40, 20
_SOURCE = Path(__file__).with_name("shadow.c")
_OFFSETS = ("stack_offset", "stack_length", "chain_offset", "chain_length")
_COLUMNS = ("registers", *_OFFSETS, "space", "is_first_visit")
_BESIDE = ("beside_address", "beside_offset", "beside_length")


class Region(ctypes.Structure):
    """Guest memory [start, end) and where it is in ours."""

    _fields_ = [("start", _U64), ("end", _U64), ("bytes", _PTR)]


def _numbers(names: str) -> list[tuple[str, type[ctypes.c_uint64]]]:
    return [(name, _U64) for name in names.split()]


class _Call(ctypes.Structure):
    _fields_ = _numbers("back sp is_interruption")


class _Samples(ctypes.Structure):
    _fields_ = [
        *_numbers("capacity count stack_capacity stack_fill chain_capacity chain_fill"),
        *((name, _PTR) for name in (*_COLUMNS, *_BESIDE, "stack", "chain")),
    ]


class ShadowStruct(ctypes.Structure):
    """struct shadow of shadow.c."""

    _fields_ = [
        *_numbers("is_arm32 regions_count registers_count"),
        ("regions", Region * _REGIONS_MAX),
        ("registers", ctypes.c_int32 * _REGISTERS_MAX),
        *_numbers("sp_register lr_register stack_low stack_high other_low other_high"),
        *_numbers("slice_max executed sample_at stop_at mean random first_visits"),
        *_numbers("space previous next depth lost"),
        ("calls", _Call * _DEPTH_MAX),
        ("out", _Samples),
        ("seen", _U64 * (1 << _SEEN_BITS)),
    ]


@dataclass(frozen=True, slots=True)
class Recorded:
    """n samples as shadow.c stored them.

    registers: (n, len(arch.registers)). stack: all slices, flat, from each stack pointer on. chain: the true return
    addresses, flat, innermost first; the first is the pc. space: which address space. beside_*: of samples in a handler with a stack of
    its own, the stack that was interrupted; length 0 elsewhere.
    """

    registers: NDArray[np.uint64]
    stack: NDArray[np.uint8]
    stack_offset: NDArray[np.int64]
    stack_length: NDArray[np.int64]
    chain: NDArray[np.uint64]
    chain_offset: NDArray[np.int64]
    chain_length: NDArray[np.int64]
    space: NDArray[np.int32]
    is_first_visit: NDArray[np.bool_]
    beside_address: NDArray[np.uint64]
    beside_offset: NDArray[np.int64]
    beside_length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.stack_offset)


class Recorder:
    """Memory for samples and the structure that C fills. capacity: samples."""

    def __init__(self, registers: int, capacity: int, stack_bytes: int) -> None:
        self.struct = ShadowStruct()
        assert library().shadow_size() == ctypes.sizeof(self.struct)
        self._columns = {
            name: np.zeros((capacity, registers) if name == "registers" else capacity, np.uint64)
            for name in (*_COLUMNS, *_BESIDE)
        }
        self._columns["chain"] = np.zeros(128 * capacity, np.uint64)
        self._stack = np.zeros(stack_bytes, np.uint8)
        out = self.struct.out
        out.capacity, out.stack_capacity, out.chain_capacity = capacity, stack_bytes, 128 * capacity
        out.stack = self._stack.ctypes.data
        for name, column in self._columns.items():
            setattr(out, name, column.ctypes.data)
        self.struct.registers_count = registers

    def recorded(self) -> Recorded:
        """Returns the records stored so far."""
        out, columns = self.struct.out, self._columns
        n = out.count
        column_names = (*_OFFSETS, *_BESIDE[1:])
        return Recorded(
            registers=columns["registers"][:n],
            stack=self._stack[: out.stack_fill],
            chain=columns["chain"][: out.chain_fill],
            space=columns["space"][:n].astype(np.int32),
            is_first_visit=columns["is_first_visit"][:n] != 0,
            beside_address=columns["beside_address"][:n],
            **{name: columns[name][:n].astype(np.int64) for name in column_names},
        )


@cache
def library() -> ctypes.CDLL:
    """shadow.c as a library; built below build/, again when the source is newer. Skips the test without gcc or unicorn."""
    unicorn = pytest.importorskip(
        "unicorn", reason="the emulator unicorn is not installed (pip install unicorn)"
    )
    folder = Path(__file__).resolve().parents[3] / "build" / "ground_truth"
    built = folder / "shadow.so"
    if not built.exists() or built.stat().st_mtime < _SOURCE.stat().st_mtime:
        if shutil.which("gcc") is None:
            pytest.skip("gcc, which builds shadow.c, is not installed (apt-get install gcc)")
        folder.mkdir(parents=True, exist_ok=True)
        home = Path(unicorn.__file__).parent
        (engine,) = (home / "lib").glob("libunicorn.so*")
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{home / 'include'}"]
        subprocess.run([*command, "-o", built, _SOURCE, engine, f"-Wl,-rpath,{home / 'lib'}"], check=True)
    loaded = ctypes.CDLL(str(built))
    loaded.shadow_size.restype = _U64
    loaded.shadow_push.argtypes = [_PTR, _U64, _U64, _U64]
    loaded.shadow_resume.argtypes = [_PTR, _U64]
    return loaded
