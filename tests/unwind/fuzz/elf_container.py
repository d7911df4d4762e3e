"""Small ELF files of any machine, with whatever sections and program headers a test wants (gABI chapters 4, 5)."""

import struct
from dataclasses import dataclass

PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_EH_FRAME, PT_ARM_EXIDX = 1, 2, 4, 0x6474E550, 0x70000001
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_DYNAMIC, SHT_NOTE, SHT_DYNSYM = 1, 2, 3, 6, 7, 11
WIDE = {62: True, 183: True, 40: False, 3: False}  # e_machine: x86_64, arm64, arm32, i386


@dataclass(frozen=True)
class Part:
    """A section; segment: the type of the program header that shows the same bytes, 0 for none."""

    name: str
    data: bytes
    type: int = SHT_PROGBITS
    flags: int = 0
    segment: int = 0
    link: int = 0
    vaddr: int | None = None  # None: the file offset, as in all PT_LOADs here


def write_elf(machine: int, parts: list[Part]) -> bytes:
    """vaddr = file offset all over; one executable PT_LOAD shows the whole file."""
    wide = WIDE[machine]
    segments = [part for part in parts if part.segment]
    head, entry = (64, 56) if wide else (52, 32)
    at = head + entry * (1 + len(segments))
    body, extents, names, name_at = bytearray(), [], bytearray(b"\0"), []
    for part in [*parts, Part(".shstrtab", b"", SHT_STRTAB)]:
        name_at.append(len(names))
        names += part.name.encode() + b"\0"
        data = bytes(names) if part.name == ".shstrtab" else part.data
        extents.append((at + len(body), len(data)))
        body += data + bytes(-len(data) % 8)
    table = at + len(body)
    sections = [b"\0" * (64 if wide else 40)]
    for part, extent, name in zip([*parts, Part("", b"", SHT_STRTAB)], extents, name_at, strict=True):
        sections.append(_section(wide, name, part, extent))
    shape = (table, head, entry, 1 + len(segments), len(sections))
    shown = [_segment(wide, PT_LOAD, (0, table), 0)]
    for part, extent in zip(parts, extents, strict=False):
        if part.segment:
            shown.append(
                _segment(wide, part.segment, extent, extent[0] if part.vaddr is None else part.vaddr)
            )
    return _header(wide, machine, shape) + b"".join(shown) + bytes(body) + b"".join(sections)


def section_offset(elf: bytes, name: str, machine: int) -> int:
    """The file offset of a section of a file that write_elf made."""
    wide = WIDE[machine]
    table = struct.unpack_from("<Q" if wide else "<I", elf, 40 if wide else 32)[0]
    stride, count, last = struct.unpack_from("<HHH", elf, 58 if wide else 46)
    offsets = [struct.unpack_from("<Q" if wide else "<I", elf, table + i * stride + (24 if wide else 16))[0] for i in range(count)]  # fmt: skip
    wanted = elf.index(b"\0" + name.encode() + b"\0", offsets[last]) + 1 - offsets[last]
    for i in range(count):
        if struct.unpack_from("<I", elf, table + i * stride)[0] == wanted:
            return int(offsets[i])
    raise KeyError(name)


def _header(wide: bool, machine: int, shape: tuple[int, int, int, int, int]) -> bytes:
    table, head, entry, n_segments, n_sections = shape
    tail = (0, head, entry, n_segments, 64 if wide else 40, n_sections, n_sections - 1)
    ident = b"\x7fELF" + (b"\2" if wide else b"\1") + b"\1\1" + bytes(9)
    if wide:
        return struct.pack("<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, head, table, *tail)
    return struct.pack("<16sHHIIIIIHHHHHH", ident, 3, machine, 1, 0, head, table, *tail)


def _segment(wide: bool, kind: int, extent: tuple[int, int], vaddr: int) -> bytes:
    offset, size = extent
    if wide:
        return struct.pack("<IIQQQQQQ", kind, 5, offset, vaddr, vaddr, size, size, 8)
    return struct.pack("<IIIIIIII", kind, offset, vaddr, vaddr, size, size, 5, 4)


def _section(wide: bool, name: int, part: Part, extent: tuple[int, int]) -> bytes:
    vaddr = extent[0] if part.vaddr is None else part.vaddr
    entry = (24 if wide else 16) if part.type in (SHT_SYMTAB, SHT_DYNSYM) else 0
    fields = (name, part.type, part.flags, vaddr, *extent, part.link, 0, 8, entry)
    return struct.pack("<IIQQQQIIQQ" if wide else "<IIIIIIIIII", *fields)
