"""walk.h and the shared object of the compiled engine, for Python."""

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

VERSION = 4  # WALK_VERSION
SAVED_MAX = 12
LANES = 24
BUFFER_FRAMES = 64
KEPT, LOST = -(1 << 31), -(1 << 31) + 1  # in `saved`
BY_LINK, SIGNED, READS_CFA, HAS_DEX_PC = 1, 2, 4, 8  # in `flags`
DONE, NEEDS_SCALAR = 0, 1  # in `outcome`
NOTHING_MISSING = (1 << 64) - 1

LINE = np.dtype(
    [
        ("cfa_offset", "<i4"),
        ("return_offset", "<i4"),
        ("kind", "u1"),
        ("method", "u1"),
        ("cfa_register", "i1"),
        ("flags", "u1"),
        ("saved", "<i4", SAVED_MAX),
        ("unused", "<u4"),
    ]
)
INTERPRETER = np.dtype([("cfa_added", "<i4"), ("dex_offset", "<i4"), ("dex_register", "<i4")])
LANE = np.dtype([("before", "V64"), ("missing", "<u8"), ("behind", f"V{8 + 16 + 8 + 8 * SAVED_MAX}")])
SEGMENT = np.dtype(
    [("sample", "<u4"), ("level", "<u4"), ("count", "<u4"), ("unused", "<u4"), ("first", "<u8")]
)
FRAME = np.dtype([("address", "<u8"), ("sp", "<u8"), ("is_return", "u1"), ("method", "u1"), ("unused", "V6")])

_I32, _I64, _U64, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p


class Walk(ctypes.Structure):
    """struct walk."""

    _fields_: ClassVar[Any] = (
        [(name, _U64) for name in ("word_mask", "uncertain_kinds", "end_of_kind")]
        + [(name, _I32) for name in ("word_bytes", "tag_bits", "registers", "pc", "sp", "link")]
        + [(name, _I32) for name in ("saved_registers", "is_signed", "fp_position", "fp_saved", "fp_span", "pc_bits")]
        + [("saved_slot", _I32 * SAVED_MAX)]
        + [("lines", _POINTER), ("interpreters", _POINTER), ("keys", _POINTER), ("values", _POINTER), ("key_mask", _U64)]
        + [("key_shift", _I32), ("tracked", _I32), ("tracked_position", _I32 * SAVED_MAX), ("signature_masks", _POINTER)]
        + [(name, _POINTER) for name in ("register_values", "registers_known", "stack_address", "stack_offset")]
        + [(name, _POINTER) for name in ("stack_length", "stack_bytes", "space", "at_return", "chosen")]
        + [("first_space", _I64), ("next", _I64), ("end", _I64), ("resumed", _POINTER), ("waiting", _POINTER)]
        + [("resumed_count", _I64), ("waiting_count", _I64), ("frames", _POINTER), ("segments", _POINTER)]
        + [(name, _I64) for name in ("frame_capacity", "frame_count", "segment_capacity", "segment_count")]
        + [("depth", _POINTER), ("ends", _POINTER), ("outcome", _POINTER)]
        + [("max_frames", ctypes.c_uint32), ("unused", ctypes.c_uint32)]
    )  # fmt: skip


def library_path() -> Path:
    """The path of the shared object for this machine, which may not exist."""
    return Path(__file__).parent / f"{sys.platform}-{platform.machine()}.so"


@cache
def load(path: Path) -> ctypes.CDLL | None:
    """The engine, or None where it is absent, cannot be loaded or is of another version than this file."""
    if sys.byteorder != "little" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.walk_version.restype = _I64
        if library.walk_version() != VERSION << 32 | LANES * BUFFER_FRAMES << 16 | ctypes.sizeof(Walk):
            return None
        library.walk_run.argtypes = [ctypes.POINTER(Walk)]
        library.walk_run.restype = None
        library.walk_copy_frames.argtypes = [_POINTER, _POINTER, _I64, *[_POINTER] * 6]
        library.walk_copy_frames.restype = None
        library.rows_run.argtypes = [_POINTER]
        library.rows_run.restype = None
        library.entries_walk.argtypes = [_POINTER]
        library.entries_walk.restype = None
    except (OSError, AttributeError):
        return None
    return library
