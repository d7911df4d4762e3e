"""Call frame information written by hand: instructions as bytes, CIEs, FDEs, whole sections."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field


def uleb(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def sleb(value: int) -> bytes:
    """Signed LEB128."""
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value & 0x7F])


def advance(delta: int) -> bytes:
    """DW_CFA_advance_loc (delta < 64, factored)."""
    return bytes([0x40 | delta])


def offset(register: int, factored: int) -> bytes:
    """DW_CFA_offset."""
    return bytes([0x80 | register]) + uleb(factored)


def restore(register: int) -> bytes:
    """DW_CFA_restore."""
    return bytes([0xC0 | register])


def op(opcode: int, *operands: int | bytes) -> bytes:
    """Any instruction of the 0x00–0x3f group: ints become ULEB128, bytes are taken as they are."""
    return bytes([opcode]) + b"".join(o if isinstance(o, bytes) else uleb(o) for o in operands)


def block(code: bytes) -> bytes:
    """A DWARF expression as an operand: its length, then the code."""
    return uleb(len(code)) + code


@dataclass
class Cie:
    """augmentation letters with their data; initial instructions."""

    initial: bytes = b""
    augmentation: str = ""
    augmentation_data: bytes = b""
    version: int = 1
    code_align: int = 1
    data_align: int = -8
    return_register: int = 16

    def body(self) -> bytes:
        text = bytes([self.version]) + self.augmentation.encode() + b"\0"
        if self.version >= 4:
            text += bytes([8, 0])
        text += uleb(self.code_align) + sleb(self.data_align)
        text += bytes([self.return_register]) if self.version == 1 else uleb(self.return_register)
        if self.augmentation.startswith("z"):
            text += uleb(len(self.augmentation_data)) + self.augmentation_data
        return text + self.initial


@dataclass
class CfiAssembler:
    """Writes one section. is_eh: .eh_frame, else .debug_frame. wide: 64-bit DWARF entries.

    wide_id: in .eh_frame, 8 bytes of CIE id in wide entries where LSB 5.0 has 4.
    """

    is_eh: bool = True
    wide: bool = False
    wide_id: bool = False
    data: bytearray = field(default_factory=bytearray)

    def cie(self, cie: Cie) -> int:
        """Appends a CIE; returns its offset."""
        return self._entry(cie.body(), None)

    def fde(
        self, cie_offset: int, start: bytes, length: bytes, program: Iterable[bytes], augmented: bool = False
    ) -> int:
        """Appends an FDE; start and length already encoded as the CIE says. Returns its offset."""
        body = start + length + (uleb(0) if augmented else b"") + b"".join(program)
        return self._entry(body, cie_offset)

    def _entry(self, body: bytes, cie_offset: int | None) -> int:
        at = len(self.data)
        id_bytes = 8 if self.wide and (self.wide_id or not self.is_eh) else 4
        head = 12 if self.wide else 4
        body += bytes(-(id_bytes + len(body)) % 8)
        if cie_offset is None:
            cie_id = 0 if self.is_eh else (1 << 8 * id_bytes) - 1
        else:
            cie_id = at + head - cie_offset if self.is_eh else cie_offset
        length = id_bytes + len(body)
        self.data += struct.pack("<IQ", 0xFFFFFFFF, length) if self.wide else struct.pack("<I", length)
        self.data += cie_id.to_bytes(id_bytes, "little") + body
        return at


def eh_frame_hdr(
    hdr_vaddr: int, eh_frame_vaddr: int, entries: Iterable[tuple[int, int]], count: int | None = None
) -> bytes:
    """.eh_frame_hdr with the usual encodings; entries: (function vaddr, FDE vaddr)."""
    table = sorted(entries)
    head = struct.pack(
        "<BBBBiI", 1, 0x1B, 0x03, 0x3B, eh_frame_vaddr - hdr_vaddr - 4, len(table) if count is None else count
    )
    return head + b"".join(struct.pack("<ii", a - hdr_vaddr, b - hdr_vaddr) for a, b in table)
