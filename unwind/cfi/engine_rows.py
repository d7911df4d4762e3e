"""cfi_lockstep.run() by the compiled engine: rows.h for Python."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.engine.library import library_path, load

if TYPE_CHECKING:
    from memleak_android.unwind.cfi.lockstep import Programs

_STATES_MAX = 1 << 15  # distinct ones; libLLVM-14 has 1,100
_SLOTS = 1 << 17
_ROWS_MAX = 1 << 25  # entries made to overlap each other could have a row for each byte of the section, each
_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p


class RowsRun(ctypes.Structure):
    """struct rows."""

    _fields_: ClassVar[Any] = (
        [(name, _POINTER) for name in ("data", "at", "end", "cie")]
        + [("programs", _I64)]
        + [(name, _POINTER) for name in ("code_align", "data_align", "initial", "column_of")]
        + [("columns", _I64)]
        + [(name, _POINTER) for name in ("program", "start", "line")]
        + [("row_capacity", _I64), ("row_count", _I64), ("states", _POINTER)]
        + [("state_capacity", _I64), ("state_count", _I64), ("slots", _POINTER)]
        + [("slot_mask", ctypes.c_uint64), ("is_done", _POINTER)]
    )


class EntriesWalk(ctypes.Structure):
    """struct entries."""

    _fields_: ClassVar[Any] = (
        ("data", _POINTER),
        ("size", _I64),
        ("at", _I64),
        ("offsets", _POINTER),
        ("cies", _POINTER),
        ("capacity", _I64),
        ("count", _I64),
        ("is_eh", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


def walk_entries(data: bytes, is_eh: bool, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """(offsets of FDEs, of their CIEs, where to go on) up to the first entry that is not plain; `most` of them."""
    library = load(library_path())
    if library is None or not data:
        return np.empty(0, np.int64), np.empty(0, np.int64), 0
    image = np.frombuffer(data, np.uint8)
    # an entry has 5 bytes at least
    offsets, cies = np.empty((2, min(len(data) // 5 + 1, most)), np.int64)
    walk = EntriesWalk(
        data=image.ctypes.data,
        size=len(data),
        offsets=offsets.ctypes.data,
        cies=cies.ctypes.data,
        capacity=len(offsets),
        is_eh=is_eh,
    )
    library.entries_walk(ctypes.byref(walk))
    return offsets[: walk.count].copy(), cies[: walk.count].copy(), walk.at


class CompiledRun(NamedTuple):
    """As cfi_lockstep.Rows."""

    program: NDArray[np.int64]
    starts: NDArray[np.int64]
    line: NDArray[np.int64]
    states: NDArray[np.int32]
    is_done: NDArray[np.bool_]


def run_compiled(programs: Programs) -> CompiledRun | None:
    """The rows of all programs, or None where there is no engine or its tables do not hold them."""
    library = load(library_path())
    if library is None:
        return None
    n, columns = len(programs.at), programs.initial.shape[1]
    rows_max = int((programs.end - programs.at).sum()) + n  # a row takes an instruction
    if rows_max > _ROWS_MAX:
        return None
    slots = np.full(_SLOTS, -1, np.int32)
    given = {
        name: np.ascontiguousarray(getattr(programs, name))
        for name in ("data", "at", "end", "cie", "code_align", "data_align", "initial", "column_of")
    }
    found = CompiledRun(
        np.empty(rows_max, np.int64),
        np.empty(rows_max, np.int64),
        np.empty(rows_max, np.int64),
        np.empty((_STATES_MAX, columns), np.int32),
        np.zeros(n, np.bool_),
    )
    run = RowsRun(
        **{name: array.ctypes.data for name, array in given.items()},
        programs=n,
        columns=columns,
        program=found.program.ctypes.data,
        start=found.starts.ctypes.data,
        line=found.line.ctypes.data,
        row_capacity=rows_max,
        states=found.states.ctypes.data,
        state_capacity=_STATES_MAX,
        slots=slots.ctypes.data,
        slot_mask=_SLOTS - 1,
        is_done=found.is_done.ctypes.data,
    )
    if library.rows_run(ctypes.byref(run)) != 0:
        return None
    rows, states = run.row_count, run.state_count
    program, starts, line = (column[:rows].copy() for column in (found.program, found.starts, found.line))
    return CompiledRun(program, starts, line, found.states[:states].copy(), found.is_done)
