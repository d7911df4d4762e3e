"""Frames in Python in evidence (struct ml_python_frames of device/wire.h), and the functions that they are in.

The last part of a record: number of frames, whether more are left out, then the frames, innermost first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.wire.blocks import (
    PYTHON_CODE,
    PYTHON_FRAME,
    PYTHON_FRAMES,
    PYTHON_FRAMES_MAX,
    Rows,
)
from memleak_android.host.wire.packed import Ints, counted_fault, ranges, structures

_HEAD, _FRAME = PYTHON_FRAMES.itemsize, PYTHON_FRAME.itemsize
_TEXT_MAX = 1024  # bytes, ML_PYTHON_TEXT_MAX


class SentPython(NamedTuple):
    """Of n records; one without frames in Python has a count of 0.

    counts, is_cut: (n,). frames: (sum of counts,) PYTHON_FRAME.
    """

    counts: Ints
    is_cut: NDArray[np.bool_]
    frames: Rows


def fault(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> int | None:
    """The first record whose frames are not within its bytes. starts: -1 = it has none; ends: of the records."""
    return counted_fault(data, starts, ends, PYTHON_FRAMES, _FRAME, PYTHON_FRAMES_MAX)


def read(data: NDArray[np.uint8], starts: Ints) -> SentPython:
    """The frames that begin at `starts`, which fault() must have checked."""
    is_sent = starts >= 0
    counts, is_cut = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.bool_)
    heads = structures(data, starts[is_sent], PYTHON_FRAMES)
    counts[is_sent], is_cut[is_sent] = heads["n_frames"], heads["is_cut"] != 0
    first = np.repeat(starts + _HEAD, counts)
    frames = structures(data, first + _FRAME * ranges(np.zeros_like(counts), counts), PYTHON_FRAME)
    return SentPython(counts, is_cut, frames)


def join(pieces: Sequence[SentPython]) -> SentPython:
    return SentPython(*map(np.concatenate, zip(*pieces, strict=True)))


@dataclass(frozen=True, slots=True)
class PythonCode:
    """A function in Python. number: in its process, from 1. table: of lines, as `lines` (PythonLines) says."""

    pid: int
    number: int
    function: str
    file: str
    first_line: int
    lines: int
    table: bytes


def decode_codes(data: bytes, starts: Iterable[int]) -> list[PythonCode]:
    """The records that begin at `starts`. One that is longer than it says is left out; names are cut."""
    found = []
    for start in starts:
        row = np.frombuffer(data, PYTHON_CODE, 1, start)[0]
        end = start + int(row["record_bytes"])
        at = [start + PYTHON_CODE.itemsize]
        at += (
            at[0] + np.cumsum([int(row[f"{part}_bytes"]) for part in ("function", "file", "table")])
        ).tolist()
        if at[-1] > end:
            continue
        function, file, table = (data[at[i] : at[i + 1]] for i in range(3))
        found.append(
            PythonCode(
                int(row["pid"]),
                int(row["code"]),
                function[:_TEXT_MAX].decode("utf-8", "replace"),
                file[:_TEXT_MAX].decode("utf-8", "replace"),
                int(row["first_line"]),
                int(row["lines"]),
                table,
            )
        )
    return found


def encode_code(code: PythonCode) -> bytes:
    parts = [code.function.encode("utf-8", "replace"), code.file.encode("utf-8", "replace"), code.table]
    body = b"".join(parts)
    row = np.zeros(1, PYTHON_CODE)
    padding = -len(body) % 8
    row["record_bytes"] = PYTHON_CODE.itemsize + len(body) + padding
    row["pid"], row["code"], row["first_line"], row["lines"] = (
        code.pid,
        code.number,
        code.first_line,
        code.lines,
    )
    row["function_bytes"], row["file_bytes"], row["table_bytes"] = map(len, parts)
    return row.tobytes() + body + bytes(padding)
