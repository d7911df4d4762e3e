"""The wire format: its numbers, its structures as NumPy dtypes, and the parser of its blocks.

Mirrors device/wire.h, which explains each field. host/wire/payloads.py decodes the payloads.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import MemleakError

WIRE_VERSION = 2
BLOCK_MAGIC = 0x314B4C4D
BLOCK_PAYLOAD_MAX = 16 << 20
FIXUPS = 4
REGISTERS_MAX = 64  # bits of registers_known
STACK_BYTES_MAX = 65528

Rows = NDArray[np.void]  # a structured array


class BlockKind(IntEnum):
    HELLO = 1
    EVIDENCE = 2
    LIVE = 3
    KEYS = 4
    MAPS = 5
    MAPPINGS = 6
    PROCESS = 7
    EVENTS = 8
    STATUS = 9
    LOG = 10
    ERROR = 11
    END = 12
    CALLS = 13
    CALL_STATISTICS = 14
    PROBE_RESULTS = 15
    HOOKED = 16
    STOPS = 17
    KERNEL_SYMBOLS = 18
    HIGH_WATER = 19
    EXIT_STOP = 20
    SCAN = 21
    STOPPED_THREADS = 22
    SCANNED = 23
    GAP = 24
    PYTHON_CODE = 25
    SESSION = 32
    MODULES = 33
    TRACES = 34
    SITES = 35
    FILES = 36
    HELD = 37
    PEAK = 38


class ArchNumber(IntEnum):
    X86_64 = 1
    ARM64 = 2
    ARM32 = 3
    I386 = 4


class Collector(IntEnum):
    BPF = 1
    PRELOAD = 2
    PLT = 3
    INLINE = 4
    LINKED = 5


class Function(IntEnum):
    UNKNOWN = 0
    MALLOC = 1
    CALLOC = 2
    REALLOC = 3
    REALLOCARRAY = 4
    POSIX_MEMALIGN = 5
    MEMALIGN = 6
    ALIGNED_ALLOC = 7
    VALLOC = 8
    PVALLOC = 9
    FREE = 10
    CFREE = 11
    FREE_SIZED = 12
    FREE_ALIGNED_SIZED = 13
    KMALLOC = 16
    KMEM_CACHE_ALLOC = 17
    MM_PAGE_ALLOC = 18
    PERCPU_ALLOC = 19
    MMAP = 32
    MMAP64 = 33
    MUNMAP = 34
    MREMAP = 35
    SHMAT = 36
    SBRK = 37
    PAIR = 64


FIRST_KERNEL_FUNCTION = Function.KMALLOC
FIRST_REGION_FUNCTION = Function.MMAP
FIRST_PAIR_FUNCTION = Function.PAIR  # functions of --pairs, in the order of the session
FUNCTIONS_MAX = 256  # ML_FN_MAX


class EvidenceFlag(IntFlag):
    AT_RETURN = 1
    STACK_WHOLE = 2
    STACK_FAULT = 4
    FIXUPS_CUT = 8
    VERIFY = 16
    STACK_SPARSE = 32
    FRAME_CHAIN = 64
    CHAIN_IS_CFI = 128
    CHAIN_IS_KERNEL = 256
    STACK_ABOVE = 512
    PYTHON_FRAMES = 1024
    INTERRUPTED = 2048


class HookedFlag(IntFlag):
    MALFORMED = 1
    READ_ONLY = 2
    NO_ROOM = 4
    UNSETTLED = 8
    PROGRAM = 16


class StopMoment(IntEnum):
    PREPARE = 1
    ATTACH = 2
    DETACH = 3


class Stopped(IntEnum):
    ALL = 1
    CALLER = 2


class PythonLines(IntEnum):
    LINETABLE = 1
    LOCATIONS = 2


class KeyFlag(IntFlag):
    PARTIAL = 2


class Lost(IntEnum):
    RING_FULL = 0
    STACK_FAULT = 1
    TABLE_FULL = 2
    KEYS_FULL = 3
    THREADS_FULL = 4
    PENDING_FULL = 5
    MISSED_ENTRY = 6
    MISSED_RETURN = 7
    MISSED_FREE = 8
    EVENTS = 9
    MAPPINGS = 10
    NURSERY_FULL = 11
    REGIONS = 12
    PROGRAMS = 13
    RECURSION = 14
    HANDLES = 15


LOST_MAX = 16


class ProcessEvent(IntEnum):
    START = 1
    FORK = 2
    EXEC = 3
    EXIT = 4


class Reason(IntEnum):
    STOPPED = 1
    TARGET_EXIT = 2
    INPUT_CLOSED = 3
    TARGET_ERROR = 4
    TRACER_ERROR = 5
    USAGE_ERROR = 6


class SiteFlag(IntFlag):
    APPROXIMATE = 1


SITE_LEAK_SHIFT, SITE_LEAK_MASK = 8, 7  # of a site's flags: index in LeakKind + 1, 0 = not scanned


NO_TRACE = 0xFFFFFFFF
NO_MODULE = 0xFFFFFFFF


def _record(size: int, *fields: tuple[str, str] | tuple[str, str, tuple[int, ...]]) -> np.dtype[np.void]:
    dtype = np.dtype(list(fields))
    assert dtype.itemsize == size, f"{dtype.names} is {dtype.itemsize} bytes, not {size}"
    return dtype


BLOCK = _record(
    16, ("magic", "<u4"), ("kind", "<u2"), ("version", "<u2"), ("payload_bytes", "<u4"), ("crc32", "<u4")
)
HELLO = _record(
    56, ("wire_version", "<u4"), ("arch", "<u2"), ("collector", "<u2"), ("page_bytes", "<u4"), ("pid", "<u4"),
    ("monotonic_ns", "<u8"), ("realtime_ns", "<u8"), ("agent_version", "S24"),
)  # fmt: skip
FIXUP = _record(16, ("slot_address", "<u8"), ("value", "<u8"))
EVIDENCE = _record(
    144, ("record_bytes", "<u4"), ("flags", "<u2"), ("function", "<u2"), ("sequence", "<u8"),
    ("timestamp_ns", "<u8"), ("key", "<u8"), ("address", "<u8"), ("size", "<u8"), ("pid", "<u4"), ("tid", "<u4"),
    ("n_registers", "<u2"), ("n_fixups", "<u2"), ("stack_bytes", "<u4"), ("stack_address", "<u8"),
    ("registers_known", "<u8"), ("fixups", [("slot_address", "<u8"), ("value", "<u8")], (FIXUPS,)),  # type: ignore[arg-type]
)  # fmt: skip
SPARSE_STACK = _record(8, ("n_words", "<u8"))
FRAME_CHAIN = _record(8, ("n_frames", "<u4"), ("end", "<u4"))
FRAME_CHAIN_MAX = 256
STACK_ABOVE = _record(8, ("reach_bytes", "<u4"), ("n_words", "<u4"))
PYTHON_CODE = _record(
    24, ("record_bytes", "<u4"), ("pid", "<u4"), ("code", "<u4"), ("first_line", "<u4"), ("function_bytes", "<u2"),
    ("file_bytes", "<u2"), ("table_bytes", "<u2"), ("lines", "<u2"),
)  # fmt: skip
PYTHON_FRAME = _record(16, ("stack_address", "<u8"), ("code", "<u4"), ("offset", "<u4"))
PYTHON_FRAMES = _record(8, ("n_frames", "<u4"), ("is_cut", "<u4"))
PYTHON_FRAMES_MAX = 128
INTERRUPTED_STACK = _record(16, ("stack_address", "<u8"), ("stack_bytes", "<u4"), ("reserved", "<u4"))
SPARSE_BYTES_MAX = 1 << 18
ABOVE_BYTES_MAX = 1 << 20
ABOVE_WORDS_MAX = 1 << 15
LIVE = _record(24, ("snapshot", "<u8"), ("timestamp_ns", "<u8"), ("count", "<u4"), ("last", "<u4"))
KEYS = LIVE
LIVE_ROW = _record(
    56, ("address", "<u8"), ("size", "<u8"), ("timestamp_ns", "<u8"), ("sequence", "<u8"), ("key", "<u8"),
    ("pid", "<u4"), ("tid", "<u4"), ("function", "<u4"), ("sample_bytes", "<u4"),
)  # fmt: skip
KEY_ROW = _record(
    56, ("key", "<u8"), ("alloc_objects", "<u8"), ("alloc_bytes", "<u8"), ("free_objects", "<u8"),
    ("free_bytes", "<u8"), ("flags", "<u8"), ("pid", "<u8"),
)  # fmt: skip
HIGH_WATER = _record(
    40, ("timestamp_ns", "<u8"), ("mark", "<u8"), ("bound_bytes", "<u8"), ("pid", "<u4"), ("count", "<u4"),
    ("last", "<u4"), ("reserved", "<u4"),
)  # fmt: skip
HIGH_WATER_ROW = _record(16, ("key", "<u8"), ("bytes", "<u8"))
STATUS = _record(
    200, ("timestamp_ns", "<u8"), ("alloc_objects", "<u8"), ("alloc_bytes", "<u8"), ("free_objects", "<u8"),
    ("free_bytes", "<u8"), ("untracked_frees", "<u8"), ("evidence_records", "<u8"), ("heap_bytes_of_target", "<u8"),
    ("tracer_cpu_ns", "<u8"), ("lost", "<u8", (LOST_MAX,)),
)  # fmt: skip
MAPS = _record(16, ("timestamp_ns", "<u8"), ("pid", "<u4"), ("text_bytes", "<u4"))
MAPPING = _record(
    64, ("record_bytes", "<u4"), ("pid", "<u4"), ("timestamp_ns", "<u8"), ("start", "<u8"), ("end", "<u8"),
    ("file_offset", "<u8"), ("inode", "<u8"), ("device_major", "<u4"), ("device_minor", "<u4"),
    ("protection", "<u4"), ("path_bytes", "<u4"),
)  # fmt: skip
MAPPING_SHARED = 8  # of protection
PROCESS = _record(
    40, ("timestamp_ns", "<u8"), ("pid", "<u4"), ("parent", "<u4"), ("event", "<u4"), ("status", "<i4"), ("comm", "S16")
)  # fmt: skip
HOOKED = _record(
    128, ("module", "<u8"), ("since_ns", "<u8"), ("patched_ns", "<u8"), ("n_slots", "<u4"), ("n_refused", "<u4"),
    ("n_foreign", "<u4"), ("flags", "<u4"), ("pid", "<u4"), ("reserved", "<u4"), ("name", "S80"),
)  # fmt: skip
STOP = _record(
    32, ("timestamp_ns", "<u8"), ("duration_ns", "<u8"), ("pid", "<u4"), ("n_threads", "<u4"), ("moment", "<u2"),
    ("stopped", "<u2"), ("reserved", "<u4"),
)  # fmt: skip
EXIT_REGISTERS = 34
EXIT_STOP = _record(
    304, ("timestamp_ns", "<u8"), ("pid", "<u4"), ("tid", "<u4"), ("n_registers", "<u4"), ("reserved", "<u4"),
    ("stack_pointer", "<u8"), ("registers", "<u8", (EXIT_REGISTERS,)),
)  # fmt: skip
SCAN = _record(
    32, ("timestamp_ns", "<u8"), ("stopped_ns", "<u8"), ("scanned_bytes", "<u8"), ("n_threads", "<u4"), ("word_bytes", "<u4")
)  # fmt: skip
SCANNED = _record(16, ("address", "<u8"), ("n_words", "<u4"), ("n_values", "<u4"))
EVENT = _record(
    56, ("timestamp_ns", "<u8"), ("address", "<u8"), ("size", "<u8"), ("key", "<u8"), ("old_address", "<u8"),
    ("pid", "<u4"), ("tid", "<u4"), ("function", "<u4"), ("error", "<i4"),
)  # fmt: skip
ERROR = _record(8, ("reason", "<u4"), ("text_bytes", "<u4"))
END = _record(16, ("reason", "<u4"), ("status", "<i4"), ("timestamp_ns", "<u8"))
TRACES = _record(16, ("first_trace", "<u4"), ("n_traces", "<u4"), ("n_frames", "<u4"), ("last", "<u4"))
TRACE_ROW = _record(32, ("sequence", "<u8"), ("key", "<u8"), ("pid", "<u4"), ("n_frames", "<u4"), ("function", "<u4"), ("end", "<u4"))  # fmt: skip
FRAME_ROW = _record(32, ("address", "<u8"), ("sp", "<u8"), ("vaddr", "<u8"), ("module", "<u4"), ("method", "<u2"), ("is_return", "<u2"))  # fmt: skip
SITES = LIVE
HELD_ROW = _record(32, ("key", "<u8"), ("pid", "<u8"), ("space", "<u8"), ("variance", "<f8"))
SITE_ROW = _record(16, ("sequence", "<u8"), ("trace", "<u4"), ("flags", "<u4"))


class BrokenStream(MemleakError):
    """The stream is unreadable from `offset` on (bytes from its start)."""

    def __init__(self, offset: int, reason: str, version: int | None = None) -> None:
        super().__init__(f"unreadable block at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason
        self.version = version  # of the block's header, if it is another version


@dataclass(frozen=True, slots=True)
class Block:
    """kind is an int, because a newer writer of the same version may use kinds unknown here."""

    kind: int
    payload: bytes


class Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


_HEADER = struct.Struct("<IHHII")


def _check_header(header: bytes | bytearray, offset: int) -> tuple[int, int, int]:
    magic, kind, version, payload_bytes, crc32 = _HEADER.unpack_from(header)
    if magic != BLOCK_MAGIC:
        raise BrokenStream(offset, f"magic is {magic:#010x}, not {BLOCK_MAGIC:#010x}")
    if version != WIRE_VERSION:
        raise BrokenStream(offset, f"wire version {version}, not {WIRE_VERSION}", version)
    if payload_bytes > BLOCK_PAYLOAD_MAX or payload_bytes % 8:
        raise BrokenStream(
            offset, f"payload of {payload_bytes} bytes (at most {BLOCK_PAYLOAD_MAX}, a multiple of 8)"
        )
    return kind, payload_bytes, crc32


class BlockParser:
    """Splits a byte stream that arrives in pieces into blocks. Holds at most one block and one piece."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset  # of the first byte that is not yet part of a returned block
        self._pending = bytearray()

    def feed(self, piece: bytes) -> Iterator[Block]:
        """Yields the completed blocks; raises BrokenStream at the first invalid one."""
        self._pending += piece
        start = 0
        try:
            while len(self._pending) - start >= _HEADER.size:
                header = self._pending[start : start + _HEADER.size]
                kind, payload_bytes, crc32 = _check_header(header, self.offset)
                end = start + _HEADER.size + payload_bytes
                if len(self._pending) < end:
                    break
                payload = bytes(memoryview(self._pending)[start + _HEADER.size : end])
                if zlib.crc32(payload) != crc32:
                    raise BrokenStream(self.offset, "checksum does not match")
                self.offset += end - start
                start = end
                yield Block(kind, payload)
        finally:
            del self._pending[:start]

    def finish(self) -> None:
        """Raises BrokenStream when the stream ended inside a block."""
        if self._pending:
            raise BrokenStream(self.offset, f"cut after {len(self._pending)} bytes")


def read_blocks(stream: Readable, offset: int = 0, piece_bytes: int = 1 << 18) -> Iterator[Block]:
    """Yields every whole block from `stream`; raises BrokenStream where it is cut or corrupt."""
    parser = BlockParser(offset)
    while piece := stream.read(piece_bytes):
        yield from parser.feed(piece)
    parser.finish()


def encode_block(block: Block) -> bytes:
    payload = block.payload
    if len(payload) > BLOCK_PAYLOAD_MAX or len(payload) % 8:
        raise ValueError(f"payload of {len(payload)} bytes")
    return _HEADER.pack(BLOCK_MAGIC, block.kind, WIRE_VERSION, len(payload), zlib.crc32(payload)) + payload
