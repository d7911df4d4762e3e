"""/etc/ld.so.cache: the files that glibc's dynamic linker loads for library names.

The format is "glibc-ld.so.cache1.1" of glibc's sysdeps/generic/dl-cache.h (little-endian).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.sections import EM_AARCH64, EM_X86_64

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER_BYTES = 48
_ENTRY = np.dtype(
    [("flags", "<i4"), ("key", "<u4"), ("value", "<u4"), ("os_version", "<u4"), ("hwcap", "<u8")]
)
_EXTENSION_MAGIC = 0xEAA42174
_EXTENSION_GLIBC_HWCAPS = 1
_HWCAP_EXTENSION = 1 << 62  # then the low half is an index into the extension's names
_FLAGS_BY_MACHINE = {
    EM_X86_64: 0x0303,
    EM_AARCH64: 0x0A03,
}  # FLAG_X8664_LIB64, FLAG_AARCH64_LIB64 | ELF_LIBC6
_CACHE_BYTES_MAX = 64 << 20


@dataclass
class LdSoCache:
    """Empty if the cache is unreadable or malformed: the linker then falls back to directories too."""

    data: bytes = b""
    entries: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, dtype=_ENTRY))

    @classmethod
    def read(cls, path: str = "/etc/ld.so.cache") -> LdSoCache:
        try:
            with open(path, "rb") as file:
                return cls.parse(file.read(_CACHE_BYTES_MAX))
        except OSError:
            return cls()

    @classmethod
    def parse(cls, data: bytes) -> LdSoCache:
        start = data.find(_MAGIC)  # an older table for libc5 may precede it
        if start < 0 or len(data) < start + _HEADER_BYTES:
            return cls()
        data = data[start:]  # string offsets count from here
        (count,) = struct.unpack_from("<I", data, len(_MAGIC))
        if count > (len(data) - _HEADER_BYTES) // _ENTRY.itemsize:
            return cls()
        return cls(data, np.frombuffer(data, dtype=_ENTRY, count=count, offset=_HEADER_BYTES))

    def find(self, name: str, machine: int, levels: tuple[str, ...]) -> Iterator[str]:
        """Paths for the library, best of `levels` (best first) first."""
        needle = os.fsencode(name) + b"\0"  # may be the tail of another string: ldconfig merges them
        keys = []
        at = self.data.find(needle)
        while at >= 0:
            keys.append(at)
            at = self.data.find(needle, at + 1)
        wanted = (self.entries["flags"] == _FLAGS_BY_MACHINE.get(machine)) & np.isin(
            self.entries["key"], keys
        )
        ranked = []
        for row in self.entries[wanted]:
            level = self._level(int(row["hwcap"]))
            if level == "" or level in levels:
                rank = levels.index(level) if level else len(levels)
                ranked.append((rank, self._string(int(row["value"]))))
        yield from (path for _, path in sorted(ranked, key=lambda pair: pair[0]))

    def _level(self, hwcap: int) -> str:
        if not hwcap & _HWCAP_EXTENSION:
            return "" if hwcap == 0 else "?"  # the old capability masks are unused
        index = hwcap & 0xFFFFFFFF
        return self._hwcap_names[index] if index < len(self._hwcap_names) else "?"

    @cached_property
    def _hwcap_names(self) -> list[str]:
        (at,) = struct.unpack_from("<I", self.data, 32)  # cache_file_new.extension_offset
        if not at or at + 8 > len(self.data):
            return []
        magic, count = struct.unpack_from("<II", self.data, at)
        if magic != _EXTENSION_MAGIC:
            return []
        for i in range(min(count, 64)):
            if at + 8 + 16 * (i + 1) > len(self.data):
                break
            tag, _, offset, size = struct.unpack_from("<IIII", self.data, at + 8 + 16 * i)
            if tag == _EXTENSION_GLIBC_HWCAPS and offset + size <= len(self.data):
                words = np.frombuffer(self.data, dtype="<u4", count=min(size // 4, 4096), offset=offset)
                return [self._string(int(word)) for word in words]
        return []

    def _string(self, at: int) -> str:
        end = self.data.find(b"\0", at, at + 4096)
        return os.fsdecode(self.data[at:end]) if end >= 0 else ""
