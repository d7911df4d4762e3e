"""Takes entries out of a shared library's .dynamic, by their tags: drop_dynamic_tags.py FILE TAG…

lld writes DT_AARCH64_BTI_PLT into whatever is marked for BTI, and has no option against it. It says that lazily bound PLT
entries have landing pads, which no loader of Android asks for; its linkers before 11 print a warning about each tag that
they do not know, on the standard error of every program that the library is loaded into (bionic linker/linker.cpp,
soinfo::prelink_image). The note that makes loaders protect the code (.note.gnu.property) stays.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection
from pathlib import Path

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr, gABI chapter 4
PHDR = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
DYN = struct.Struct("<qQ")  # Elf64_Dyn
ELF64_LITTLE = b"\x7fELF\x02\x01"
PT_DYNAMIC, DT_NULL = 2, 0


def drop(image: bytes, tags: Collection[int]) -> bytes:
    """The library without these entries; those behind them move up, DT_NULL follows.

    ValueError when it is not a little-endian 64-bit ELF file with a dynamic segment.
    """
    if not image.startswith(ELF64_LITTLE):
        raise ValueError("not a little-endian 64-bit ELF file")
    start, size = _dynamic(image)
    entries = [DYN.unpack_from(image, start + i) for i in range(0, size, DYN.size)]
    kept = [entry for entry in entries if entry[0] not in tags]
    kept += [(DT_NULL, 0)] * (len(entries) - len(kept))
    return image[:start] + b"".join(DYN.pack(*entry) for entry in kept) + image[start + size :]


def _dynamic(image: bytes) -> tuple[int, int]:
    """Offset and size of the dynamic segment in the file."""
    header = EHDR.unpack_from(image)
    table, count = header[5], header[10]
    for i in range(count):
        kind, _, offset, _, _, size, _, _ = PHDR.unpack_from(image, table + i * PHDR.size)
        if kind == PT_DYNAMIC:
            return offset, size
    raise ValueError("no dynamic segment")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_bytes(drop(path.read_bytes(), {int(word, 0) for word in sys.argv[2:]}))
