"""Compiled tables on disk, so that a file's call frame information is decoded once.

An entry belongs to the very bytes it was made from: its name holds their SHA-256, so neither a file that bears
another's build-id nor a stripped twin can supply wrong rows. Entries are written to a temporary file and
renamed; readers and writers need no lock. Damaged, impossible or other-version files are ignored.
"""

import contextlib
import hashlib
import os
import struct
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memleak_android.unwind.cfi.cache_sharing import Sharing, Unshared, entry_path, file_digest
from memleak_android.unwind.cfi.compile import RowClass
from memleak_android.unwind.cfi.compiled import ASK, CompiledTable, compile_table
from memleak_android.unwind.cfi.engine_rows import CFA_REGISTER, CLASS, FIRST_RULE, SIGNED
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.file_reading import contents, open_regular
from memleak_android.unwind.file_writing import UNFINISHED, appearing, forget_oldest, remove
from memleak_android.unwind.trace import Method

_MAGIC = b"MLROWS\r\n"
_VERSION = 2  # of the file's form and of what the compiler makes of the same bytes
_ENTRY_MAX = 1 << 30  # bytes
_FOLDER_MAX = 1 << 30  # bytes; the oldest entries go first
_REGISTERS_MAX = 128
_WRITING_MAX_S = 3600.0  # a file that is unfinished for longer was left by a writer that died
# Decoding for one vaddr (10 to 20 us) takes as long as reading the entry of so many bytes of CFI, and as compiling so
# many (libLLVM-14 has 4.9 MB, whose entry is read in 8 ms and made in 120 to 300); what is made is there for the
# processes to come, too, so it is made at a quarter of its price.
_READ_BYTES = 10_000
_COMPILED_BYTES = 1600
_WORK = {".debug_frame": 1, ".zdebug_frame": 4, ".eh_frame": 1, ".gnu_debugdata": 8, ".ARM.exidx": 20}
_WORK_MIN = 4096
_FRAME_PER_HDR = 6  # bytes of .eh_frame for each byte of its index, in files without section headers
_CLASS = struct.Struct("<HBBI")  # return register, is signal, method, bytes of its CFA expression
_EXPRESSION_MAX = 1 << 16
_SECTIONS = (".debug_frame", ".zdebug_frame", ".eh_frame_hdr", ".eh_frame", ".gnu_debugdata", ".ARM.exidx", ".ARM.extab")  # fmt: skip


class _Header(NamedTuple):
    magic: bytes
    version: int
    checksum: int  # CRC-32 of all that follows the header
    base: int  # vaddr that `starts` count from
    steps: int
    lines: int
    registers: int
    classes: int
    digest: bytes


_HEADER = struct.Struct("<8sIIQQIHH32s")


class TableCache:
    """folder: made when the first entry is stored; only its owner may read it."""

    def __init__(self, folder: str | os.PathLike[str], sharing: Sharing | None = None) -> None:
        self.folder = Path(folder)
        self._sharing = sharing or Unshared()

    def serve(self, module: Module) -> None:
        """From now on the module's table takes its rows from here, as soon as that costs less than decoding them."""
        module.table.supply = _Supply(self, module).rows

    def find(self, module: Module) -> CompiledTable | None:
        """The rows of a module, when there is a good entry; that is then the youngest."""
        digest = source_digest(module)
        path = self._path(module, digest)
        return self._sharing.find(path, lambda: _read(path, digest))

    def obtain(self, module: Module) -> CompiledTable:
        """Like find, but a missing table is compiled and stored, and so shared."""
        digest = source_digest(module)
        path = self._path(module, digest)

        def make() -> CompiledTable:
            compiled = compile_table(module.arch, module.table.sources)
            self._keep(path, compiled, digest)
            return compiled

        compiled = self._sharing.obtain(path, lambda: _read(path, digest), make)
        assert compiled is not None  # it can always be made
        return compiled

    def _keep(self, path: Path, compiled: CompiledTable, digest: bytes) -> None:
        """Writes an entry, if it can be kept."""
        data = encode_entry(compiled, digest)
        if data is not None:
            with contextlib.suppress(OSError):
                with appearing(path) as file:
                    file.write(data)
                self._prune()

    def _path(self, module: Module, digest: bytes) -> Path:
        return entry_path(self.folder, module.build_id, digest, ".rows")

    def _prune(self) -> None:
        """Keeps the folder below its bound."""
        for path in self.folder.glob(f"{UNFINISHED}*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < time.time() - _WRITING_MAX_S:
                    remove(path)
        forget_oldest(self.folder.glob("*.rows"), _FOLDER_MAX)


class _Supply:
    """Rents before it buys: an entry is read, or made, when decoding one by one has cost about as much."""

    def __init__(self, cache: TableCache, module: Module) -> None:
        self._cache = cache
        self._module = module
        self._bytes = _work_bytes(module)
        self._sought = False

    def rows(self, asked: int) -> CompiledTable | None:
        if not self._sought and asked * _READ_BYTES >= self._bytes:
            self._sought = True
            found = self._cache.find(self._module)
            if found is not None:
                return found
        if asked * _COMPILED_BYTES < self._bytes:
            return None
        return self._cache.obtain(self._module)


def _work_bytes(image: ElfImage) -> int:
    """The cost of compiling a file, in bytes of CFI that would cost the same."""
    total = _WORK_MIN
    for name, weight in _WORK.items():
        section = image.section_of_loader(name)
        total += weight * section.size if section else 0
    hdr = None if image.section(".eh_frame") else image.section_of_loader(".eh_frame_hdr")
    return total + (_FRAME_PER_HDR * hdr.size if hdr else 0)


def source_digest(image: ElfImage) -> bytes:
    """SHA-256 of all that the rows of a file depend on: its unwind sections and their addresses."""
    digest = hashlib.sha256(f"{image.machine} {image.loads} {sorted(image.tables.items())}".encode())
    read = {
        name: image.section(name) for name in _SECTIONS
    }  # the first of each name, by which rows are decoded
    for section in image.sections:
        digest.update(repr(section).encode())
        if section is read.get(section.name):
            digest.update(image.section_bytes(section))
    for table in image.tables.values():
        digest.update(image.section_bytes(table))
    if not image.sections or (".ARM.exidx" in image.tables and not image.section(".ARM.extab")):
        # without section headers rows may be anywhere in the file
        digest.update(file_digest(image.data) if image.is_readable() else b"")
    return digest.digest()


def encode_entry(compiled: CompiledTable, digest: bytes) -> bytes | None:
    """The bytes of an entry, or None for vaddrs that lie more than 4 GB apart, or an absurd register number."""
    first = int(compiled.starts[0]) if len(compiled.starts) else 0
    base, distances = compiled.base + first, compiled.starts - compiled.starts.dtype.type(first)
    if len(distances) and int(distances[-1]) >= 1 << 32:
        return None
    kinds = compiled.classes
    if any(k.return_register >= 1 << 16 or len(k.cfa_expression) >= _EXPRESSION_MAX for k in kinds):
        return None
    if len(kinds) >= 1 << 16:
        return None
    body = b"".join(
        (
            distances.astype("<u4").tobytes(),
            compiled.ids.astype("<i4").tobytes(),
            compiled.states.astype("<i4").tobytes(),
            bytes(compiled.registers),
            *(_CLASS.pack(*kind[:3], len(kind.cfa_expression)) for kind in kinds),
            *(kind.cfa_expression for kind in kinds),
        )
    )
    header = _Header(
        _MAGIC, _VERSION, 0, base, len(compiled.starts), len(compiled.states),
        len(compiled.registers), len(compiled.classes), digest,
    )  # fmt: skip
    unchecked = _HEADER.pack(*header)
    return _HEADER.pack(*header._replace(checksum=zlib.crc32(body, zlib.crc32(unchecked)))) + body


def decode_entry(data: bytes | memoryview, digest: bytes) -> CompiledTable | None:
    """The table of an entry, or None when anything about it is wrong."""
    if len(data) < _HEADER.size:
        return None
    header = _Header(*_HEADER.unpack_from(data))
    columns = FIRST_RULE + header.registers
    sizes = (4 * header.steps, 4 * header.steps, 4 * header.lines * columns, header.registers)
    least = _HEADER.size + sum(sizes) + _CLASS.size * header.classes
    if header[:2] != (_MAGIC, _VERSION) or header.digest != digest or len(data) < least:
        return None
    body = memoryview(data)[_HEADER.size :]
    if zlib.crc32(body, zlib.crc32(_HEADER.pack(*header._replace(checksum=0)))) != header.checksum:
        return None
    at = np.cumsum([0, *sizes]).tolist()
    classes = _classes(body[at[4] :], header.classes)
    if classes is None:
        return None
    table = CompiledTable(
        np.frombuffer(body[at[0] : at[1]], "<u4"),
        np.frombuffer(body[at[1] : at[2]], "<i4"),
        np.frombuffer(body[at[2] : at[3]], "<i4").reshape(-1, columns),
        classes,
        tuple(body[at[3] : at[4]]),
        header.base,
    )
    return table if _is_possible(table) else None


def _classes(data: memoryview, count: int) -> tuple[RowClass, ...] | None:
    """Heads of the classes, behind them their expressions and nothing else."""
    known = {int(method): method for method in Method}
    at, classes = _CLASS.size * count, []
    for register, signal, method, size in _CLASS.iter_unpack(data[:at]):
        expression = bytes(data[at : at + min(size, _EXPRESSION_MAX)])
        classes.append(RowClass(register, bool(signal), known.get(method, Method.REGISTERS), expression))
        at += size
    return tuple(classes) if at == len(data) else None


def _is_possible(table: CompiledTable) -> bool:
    """A checksum keeps no liar out: nothing in an entry may lead outside its arrays."""
    registers = np.array(table.registers, np.int64)
    cfa, classes = table.states[:, CFA_REGISTER], table.states[:, CLASS]
    return bool(
        np.all(table.starts[1:] > table.starts[:-1])
        and table.ids.min(initial=ASK) >= ASK
        and table.ids.max(initial=ASK) < len(table.states)
        and np.all((classes >= 0) & (classes < len(table.classes)))
        and np.all((cfa >= 0) & (cfa < _REGISTERS_MAX))
        and np.all((table.states[:, SIGNED] & ~1) == 0)
        and np.all(registers[1:] > registers[:-1])
        and np.all(registers < _REGISTERS_MAX)
        and all(kind.method is not Method.REGISTERS for kind in table.classes)
    )


def _read(path: Path, digest: bytes) -> CompiledTable | None:
    """The rows of a good entry, which is then the youngest."""
    try:
        with open(open_regular(path, follow=False), "rb") as file:
            if os.fstat(file.fileno()).st_size > _ENTRY_MAX:
                return None
            # entries are never modified in place; reading one takes as long as all its processing
            data = contents(file.fileno(), path)
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
    except (OSError, ValueError):
        return None
    return decode_entry(data, digest)
