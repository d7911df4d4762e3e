"""Empties the DWARF sections of a BPF object: the loader wants BTF only, and DWARF is two thirds of the file.

Sections keep their header, name and index (relocations refer to indices); those of DWARF and their
relocations get size 0 and the bytes of the others move up. So do the relocations of BTF: their
values are in the sections already, and loaders skip them. binutils' strip does not know BPF, and zig's
objcopy takes linked programs only.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr, gABI chapter 4
SHDR = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
ELF64_LITTLE = b"\x7fELF\x02\x01"
SHT_NOBITS = 8


def align(offset: int, alignment: int) -> int:
    return -(-offset // max(alignment, 1)) * max(alignment, 1)


def strip(image: bytes) -> bytes:
    """The object without DWARF; ValueError when it is not a little-endian 64-bit ELF file."""
    if not image.startswith(ELF64_LITTLE):
        raise ValueError("not a little-endian 64-bit ELF object")
    header = list(EHDR.unpack_from(image))
    table, count, names_index = header[6], header[12], header[13]
    sections = [list(SHDR.unpack_from(image, table + i * SHDR.size)) for i in range(count)]
    names = sections[names_index][4]
    out = bytearray(EHDR.size)
    for section in sections:
        start = names + section[0]
        name = image[start : image.index(b"\0", start)]
        if name.removeprefix(b".rela").removeprefix(b".rel").startswith(b".debug_") or name.startswith(
            b".rel.BTF"
        ):
            section[5] = 0
        offset, size = section[4], section[5]
        out.extend(bytes(align(len(out), section[8]) - len(out)))
        section[4] = len(out)
        if section[1] != SHT_NOBITS:
            out.extend(image[offset : offset + size])
    out.extend(bytes(align(len(out), 8) - len(out)))
    header[6] = len(out)
    for section in sections:
        out.extend(SHDR.pack(*section))
    EHDR.pack_into(out, 0, *header)
    return bytes(out)


if __name__ == "__main__":
    source, destination = map(Path, sys.argv[1:])
    destination.write_bytes(strip(source.read_bytes()))
