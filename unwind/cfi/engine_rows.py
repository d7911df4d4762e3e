"""The call frame instructions of many FDEs at once, by the compiled engine: rows.h for Python.

The engine keeps rows of small numbers only. A program with anything else (an expression, a register without a column), and
every program where the engine is absent, is returned as not done, for program.py.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.engine.library import library_path, load
from memleak_android.unwind.trace import Ints

# In the column of a register, instead of an offset from the CFA:
ABSENT = -(1 << 31)  # no rule
UNDEFINED = ABSENT + 1
SAME_VALUE = ABSENT + 2
# Columns of a state. CLASS: a number of the caller's that all rows of a CIE share.
CFA_REGISTER, CFA_OFFSET, SIGNED, CLASS, FIRST_RULE = 0, 1, 2, 3, 4
ALIGN_MAX = 64  # of the factors: three bytes of LEB128 times this fit a column

_STATES_MAX = 1 << 15  # distinct ones; libLLVM-14 has 1,100
_SLOTS = 1 << 17
_COLUMNS_MAX = 160  # ROWS_COLUMNS_MAX
_ROWS_MAX = 1 << 25  # entries made to overlap each other could have a row for each byte of the section, each
_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Programs:
    """n FDEs. data: the section. at, end: their instructions in data.

    cie: number of the CIE of each. code_align, data_align: by CIE. initial: (CIEs, columns), the states that the
    programs begin with. column_of: by register number (128), 0 for registers without a column.
    """

    data: NDArray[np.uint8]
    at: Ints
    end: Ints
    cie: Ints
    code_align: Ints
    data_align: Ints
    initial: NDArray[np.int32]
    column_of: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of all programs that are done, by program, in order.

    starts: bytes from the function's start. line: index into the distinct `states`.
    """

    program: Ints
    starts: Ints
    line: Ints
    states: NDArray[np.int32]
    is_done: NDArray[np.bool_]


class _RowsRun(ctypes.Structure):
    """struct rows."""

    _fields_: ClassVar[Any] = (
        [(name, _POINTER) for name in ("data", "at", "end", "cie")]
        + [("programs", _I64)]
        + [(name, _POINTER) for name in ("code_align", "data_align", "initial", "column_of")]
        + [("columns", _I64)]
        + [(name, _POINTER) for name in ("program", "starts", "line")]
        + [("row_capacity", _I64), ("row_count", _I64), ("states", _POINTER)]
        + [("state_capacity", _I64), ("state_count", _I64), ("slots", _POINTER)]
        + [("slot_mask", ctypes.c_uint64), ("is_done", _POINTER)]
    )


class _EntriesWalk(ctypes.Structure):
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


def walk_entries(data: bytes, is_eh: bool, most: int) -> tuple[Ints, Ints, int]:
    """(offsets of FDEs, of their CIEs, where to go on) up to the first entry that is not plain; `most` of them."""
    library = load(library_path())
    if library is None or not data:
        return np.empty(0, np.int64), np.empty(0, np.int64), 0
    image = np.frombuffer(data, np.uint8)
    # an entry has 5 bytes at least
    offsets, cies = np.empty((2, min(len(data) // 5 + 1, most)), np.int64)
    walk = _EntriesWalk(
        data=image.ctypes.data,
        size=len(data),
        offsets=offsets.ctypes.data,
        cies=cies.ctypes.data,
        capacity=len(offsets),
        is_eh=is_eh,
    )
    library.entries_walk(ctypes.byref(walk))
    return offsets[: walk.count].copy(), cies[: walk.count].copy(), walk.at


def run(programs: Programs) -> Rows:
    """Runs all of them; is_done is False for those that need program.py."""
    library = load(library_path())
    n, columns = len(programs.at), programs.initial.shape[1]
    rows_max = int((programs.end - programs.at).sum()) + n  # a row takes an instruction
    if library is None or columns > _COLUMNS_MAX or rows_max > _ROWS_MAX:
        rows_max = 0
    arrays = {name: np.ascontiguousarray(getattr(programs, name)) for name in Programs.__slots__}
    found: dict[str, NDArray[Any]] = {
        name: np.empty(rows_max, np.int64) for name in ("program", "starts", "line")
    }
    found["states"] = np.empty((_STATES_MAX, columns), np.int32)
    found["slots"] = np.full(_SLOTS, -1, np.int32)
    found["is_done"] = np.zeros(n, np.bool_)
    run = _RowsRun(
        **{name: array.ctypes.data for name, array in (arrays | found).items()},
        programs=n,
        columns=columns,
        row_capacity=rows_max,
        state_capacity=_STATES_MAX,
        slot_mask=_SLOTS - 1,
    )
    if library is not None and rows_max:
        library.rows_run(ctypes.byref(run))
    program, starts, line = (found[name][: run.row_count].copy() for name in ("program", "starts", "line"))
    return Rows(program, starts, line, found["states"][: run.state_count].copy(), found["is_done"])
