"""Seeds of mutations: one small, well-formed input of every kind, and a few files of this machine."""

import lzma
import struct
import tempfile
import zlib
from pathlib import Path

from tests.host.commands.test_report import finished, raw_blocks
from tests.support.builders.blocks import write_recording
from tests.support.builders.cfi_assembler import (
    CfiAssembler,
    Cie,
    advance,
    block,
    eh_frame_hdr,
    offset,
    op,
    restore,
)
from tests.unwind.fuzz.elf_container import (
    PT_ARM_EXIDX,
    PT_DYNAMIC,
    PT_GNU_EH_FRAME,
    PT_NOTE,
    SHT_DYNAMIC,
    SHT_DYNSYM,
    SHT_NOTE,
    SHT_STRTAB,
    SHT_SYMTAB,
    WIDE,
    Part,
    section_offset,
    write_elf,
)

X86_64, ARM64, ARM32, I386 = 62, 183, 40, 3
SHF_COMPRESSED = 0x800
# e_machine: stack pointer, return address and data alignment in CFI
_CFI = {X86_64: (7, 16, -8), ARM64: (31, 30, -8), ARM32: (13, 14, -4), I386: (4, 8, -4)}
_PROGRAMS = (
    [advance(4), op(0x0E, 24), offset(3, 2), advance(8), op(0x0A), op(0x0E, 8), restore(3), advance(1), op(0x0B)],
    [advance(2), op(0x0F, block(b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22"))],
    [op(0x10, 6, block(b"\x75\x10")), op(0x16, 5, block(b"\x0cDEX1\x13\x73\x00")), op(0x2D), op(0x2E, 16)],
    [op(0x05, 12, 6), op(0x06, 12), op(0x07, 3), op(0x08, 5), op(0x09, 6, 5), op(0x11, 3, b"\x7e"), op(0x14, 12, 4)],
    [op(0x02, b"\x10"), op(0x03, b"\x10\x00"), op(0x0C, 6, 16), op(0x0D, 5), op(0x12, 6, b"\x7c"), op(0x13, b"\x7c")],
)  # fmt: skip


def _cie(machine: int, version: int = 1) -> Cie:
    sp, back, align = _CFI[machine]
    entry = op(0x0C, sp, 16) + offset(back, 1)
    return Cie(entry, "zR", b"\x1b", version, 1, align, back)


def eh_frame(machine: int, at: int, code: int, hdr_at: int) -> tuple[bytes, bytes]:
    """(.eh_frame of 40 functions at vaddr `at` about code from `code` on, .eh_frame_hdr)."""
    assembler = CfiAssembler()
    cie = assembler.cie(_cie(machine))
    entries = []
    for i in range(40):
        field_address = at + len(assembler.data) + 8
        start = struct.pack("<i", code + 16 * i - field_address)
        program = _PROGRAMS[i % len(_PROGRAMS)]
        entries.append((code + 16 * i, at + assembler.fde(cie, start, struct.pack("<I", 16), program, True)))
    return bytes(assembler.data) + bytes(4), eh_frame_hdr(hdr_at, at, entries)


def debug_frame(machine: int, code: int) -> bytes:
    """.debug_frame of 20 functions behind those of eh_frame; 64-bit entries among them."""
    data = bytearray()
    word = "<Q" if WIDE[machine] else "<I"
    for wide in (False, True):
        assembler = CfiAssembler(is_eh=False, wide=wide, data=data)
        sp, back, align = _CFI[machine]
        cie = assembler.cie(Cie(op(0x0C, sp, 16) + offset(back, 1), data_align=align, return_register=back))
        for i in range(10):
            start = struct.pack(word, code + 640 + 16 * (i + 10 * wide))
            assembler.fde(cie, start, struct.pack(word, 16), _PROGRAMS[i % len(_PROGRAMS)])
    return bytes(data)


def exidx(at: int, code: int, extab: int) -> bytes:
    """30 entries: inline, in .ARM.extab, and the end of the stack."""
    entries = bytearray()
    for i in range(30):
        entry_address = at + len(entries)
        entries += struct.pack("<I", code + 16 * i - entry_address & 0x7FFFFFFF)
        words = (0x80B0B0B0, 0x8001AB80, 1, 0x80978408, extab + 16 - entry_address - 4 & 0x7FFFFFFF)
        entries += struct.pack("<I", words[i % len(words)])
    return bytes(entries)


EXTAB = struct.pack("<8I", 0x81019B40, 0x8484AAB0, 0, 0, 0x7FFFFF00, 0x0201A8B0, 0xB0B0B0B1, 0x00B20800)


def _symbols(machine: int) -> tuple[bytes, bytes]:
    strings = b"\0_ZN3foo3barEv\0exit\0__jit_debug_descriptor\0lib\x1b[31mx.so\0" + b"_ZN1aIS_S_EE\0"
    table = bytearray(24 if WIDE[machine] else 16)
    for i, name in enumerate((1, 15, 20, 1)):
        if WIDE[machine]:
            table += struct.pack("<IBBHQQ", name, 0x12, 0, 1, 0x400 + 16 * i, 16)
        else:
            table += struct.pack("<IIIBBH", name, 0x400 + 16 * i, 16, 0x12, 0, 1)
    return bytes(table), strings


def _dynamic(machine: int, strings_at: int) -> bytes:
    entry = "<QQ" if WIDE[machine] else "<II"
    return b"".join(struct.pack(entry, *pair) for pair in ((5, strings_at), (10, 80), (14, 43), (0, 0)))


def elf(machine: int, extra: tuple[Part, ...] = ()) -> bytes:
    """Every table that the unwinder reads, at offsets that are found by laying the file out twice."""
    offsets = {".text": 0, ".eh_frame": 0, ".eh_frame_hdr": 0, ".ARM.exidx": 0, ".ARM.extab": 0, ".dynstr": 0}
    for _ in range(2):
        frame, hdr = eh_frame(machine, offsets[".eh_frame"], offsets[".text"], offsets[".eh_frame_hdr"])
        table, strings = _symbols(machine)
        parts = [
            Part(".text", b"\xe8\0\0\0\0\xc3\x90\x90" * 160, flags=6),
            Part(".dynsym", table, SHT_DYNSYM, link=3),
            Part(".dynstr", strings, SHT_STRTAB),
            Part(".dynamic", _dynamic(machine, offsets[".dynstr"]), SHT_DYNAMIC, segment=PT_DYNAMIC),
            Part(".note.gnu.build-id", struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20)), SHT_NOTE, segment=PT_NOTE),
            Part(".eh_frame", frame),
            Part(".eh_frame_hdr", hdr, segment=PT_GNU_EH_FRAME),
            Part(".ARM.exidx", exidx(offsets[".ARM.exidx"], offsets[".text"], offsets[".ARM.extab"]), segment=PT_ARM_EXIDX),
            Part(".ARM.extab", EXTAB),
            Part(".symtab", table, SHT_SYMTAB, link=3),
            *extra,
        ]  # fmt: skip
        file = write_elf(machine, parts)
        offsets = {name: section_offset(file, name, machine) for name in offsets}
    return file


def packed(machine: int, how: str) -> tuple[Part, ...]:
    """How .debug_frame may hide: plain, zlib in both forms, inside .gnu_debugdata."""
    frame = debug_frame(machine, 0x180)
    head = (
        struct.pack("<IIQQ", 1, 0, len(frame), 1) if WIDE[machine] else struct.pack("<III", 1, len(frame), 1)
    )
    if how == "zlib":
        return (Part(".debug_frame", head + zlib.compress(frame), flags=SHF_COMPRESSED),)
    if how == "zdebug":
        return (Part(".zdebug_frame", b"ZLIB" + struct.pack(">Q", len(frame)) + zlib.compress(frame)),)
    if how == "xz":
        inner = write_elf(machine, [Part(".debug_frame", frame), Part(".symtab", b"", SHT_SYMTAB)])
        return (Part(".gnu_debugdata", lzma.compress(inner, preset=0)),)
    return (Part(".debug_frame", frame),)


REGISTERS = {
    X86_64: b"rax: 1\nrbp: 7000000\nrsp: 7000000\nrip: 40100190\n",
    ARM64: b"x0: 1\nx29: 7000000\nlr: 401001a0\nsp: 7000000\npc: 40100190\n",
    ARM32: b"r0: 1\nr7: 7000000\nr11: 7000000\nsp: 7000000\nlr: 401001a1\npc: 40100190\n",
    I386: b"eax: 1\nebp: 7000000\nesp: 7000000\neip: 40100190\n",
}
MAPS = (
    b"40100000-40110000 r-xp 00000000 08:01 123 /system/lib/a.so\n"
    b"40110000-40111000 ---p 00000000 00:00 0\n"
    b"40111000-40112000 rw-p 00010000 08:01 123 /system/lib/a.so\n"
    b"50000000-50001fff r-xp 00001000 08:01 9 /data/app/b.apk\n"
    b"07000000-07002000 rw-p 00000000 00:00 0 [stack]\n"
)


def stack(machine: int) -> bytes:
    """256 words: addresses of code, of the stack, and others in turn."""
    word = "<Q" if WIDE[machine] else "<I"
    values = (0x401001A1, 0x7000080, 0x40100225, 0, 0x40100199, 0x70000F0, 0x50000010, 0x41414141)
    return struct.pack("<Q", 0x7000000) + b"".join(
        struct.pack(word, values[i % 8] + i // 8 * 8) for i in range(256)
    )


def recordings() -> list[bytes]:
    """One as it comes from a session, and a finished one."""
    with tempfile.TemporaryDirectory(prefix="memleak-fuzz-") as name:
        folder = Path(name)
        return [
            write_recording(folder / "a.memleak", blocks).read_bytes()
            for blocks in (raw_blocks(), finished(folder))
        ]


def all_seeds() -> dict[str, list[bytes]]:
    """By kind of input (the names of targets.TARGETS)."""
    small = [Path("/usr/bin/true"), Path("/usr/lib/x86_64-linux-gnu/libanl.so.1")]
    elves = [elf(m, packed(m, how)) for m in _CFI for how in ("plain", "zlib", "zdebug", "xz")]
    return {
        "elf": elves + [path.read_bytes() for path in small if path.exists()],
        "cfi": [bytes([i]) + eh_frame(m, 0, 0, 0)[0] for i, m in enumerate(_CFI)]
        + [bytes([i + 8]) + debug_frame(m, 0) for i, m in enumerate(_CFI)],
        "exidx": [exidx(0, 0x8000, 240) + EXTAB],
        "expression": [b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22", b"\x0cDEX1\x13\x73\x00", b"\x12\x06\x23\x10\x2f\xf9\xff"],
        "xz": [lzma.compress(elf(X86_64), check=check, preset=0) for check in (lzma.CHECK_CRC64, lzma.CHECK_NONE)],
        "maps": [MAPS],
        "recording": [bytes([i]) + file for i, file in enumerate((*recordings(), *recordings()))],
        "names": [
            b"1000 20 JS:*f /srv/app.js:12:3\n1010 8 py::g:/srv/a.py\n1800 800 Builtin:X\n",
            b"Metadata-Version: 2.1\nName: lz4 \nVersion: 4.0\n\nText\n",
        ],
        "snapshot": [b"\xff\xfe\xfd".join((REGISTERS[m], MAPS, stack(m), elf(m))) for m in _CFI],
    }  # fmt: skip
