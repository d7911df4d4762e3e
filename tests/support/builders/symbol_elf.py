"""A small ELF file with a symbol table, written byte by byte (gABI chapters 4 and 5)."""

import struct
from dataclasses import dataclass

FUNC, NOTYPE, OBJECT, IFUNC = 2, 0, 1, 10
LOCAL, GLOBAL, WEAK = 0, 1, 2
X86_64, ARM = 62, 40
TEXT_INDEX, DATA_INDEX = 1, 2


@dataclass(frozen=True)
class ElfSymbol:
    name: str
    value: int
    size: int = 0
    kind: int = FUNC
    binding: int = GLOBAL
    section: int = TEXT_INDEX


def write_elf(symbols: list[ElfSymbol], text: range = range(0x1000, 0x2000), machine: int = X86_64) -> bytes:
    """Sections: .text (no bytes), .data (no bytes), .symtab, .strtab, .shstrtab."""
    strings = bytearray(b"\0")
    table = bytearray(24)
    for s in symbols:
        info = s.binding << 4 | s.kind
        table += struct.pack("<IBBHQQ", len(strings), info, 0, s.section, s.value, s.size)
        strings += s.name.encode() + b"\0"
    names = b"\0.text\0.data\0.symtab\0.strtab\0.shstrtab\0"
    at = 64
    contents = []
    for content in (bytes(table), bytes(strings), names):
        contents.append((at, len(content)))
        at += len(content)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, machine, 1, 0, 0, at, 0, 64, 56, 0, 64, 6, 5
    )
    sections = [
        (0, 0, 0, 0, 0, 0, 0),
        (1, 8, 6, text.start, 0, len(text), 0),
        (7, 8, 3, 0x9000, 0, 0x100, 0),
        (13, 2, 0, 0, *contents[0], 4),
        (21, 3, 0, 0, *contents[1], 0),
        (29, 3, 0, 0, *contents[2], 0),
    ]
    headers = b"".join(struct.pack("<IIQQQQIIQQ", *s, 0, 1, 24 if s[1] == 2 else 0) for s in sections)
    return header + bytes(table) + bytes(strings) + names + headers
