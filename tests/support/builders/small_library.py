"""ELF files of a few functions with CFI written by hand, of any architecture, and stacks that run through them."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotFrame, SnapshotOptions
from memleak_android.unwind.trace import TraceEnd
from tests.support.builders.cfi_assembler import CfiAssembler, Cie, eh_frame_hdr, offset, op
from tests.unwind.fuzz.elf_container import PT_GNU_EH_FRAME, WIDE, Part, section_offset, write_elf

X86_64, ARM64, ARM32, I386 = 62, 183, 40, 3
FUNCTION = 0x40  # bytes of each function
CODE_VADDR = 64 + 2 * 56  # of .text in wide files without more segments: ELF header, two program headers
BASE, STACK = 0x40000000, 0x7000000
# CFI at a function's entry: CFA = sp + words pushed; location of the return address.
ENTRY = {
    X86_64: Cie(op(0x0C, 7, 8) + offset(16, 1), "zR", b"\x1b"),
    I386: Cie(op(0x0C, 4, 4) + offset(8, 1), "zR", b"\x1b", data_align=-4, return_register=8),
    ARM64: Cie(op(0x0C, 31, 0), "zR", b"\x1b", data_align=-8, return_register=30),
    ARM32: Cie(op(0x0C, 13, 0), "zR", b"\x1b", data_align=-4, return_register=14),
}
STOPPING = b"\xe8\0\0\0\0\xf4\xf4\xf4"  # call; hlt; hlt; hlt
WITH_FRAME_POINTER = b"\x8b\x45\xf8\x90\x90\x90\xff\xe0"  # mov eax,[rbp-8]; nop; nop; nop; jmp rax
WITHOUT_FRAME_POINTER = b"\x90\x90\x90\x90\x90\x90\xff\xe0"  # nop …; jmp rax
Program = Sequence[bytes] | None  # None: a function without CFI


def cfi(cie: Cie, programs: Sequence[Program], text: int, frame: int, *, is_eh: bool = True, word: str = "<I") -> tuple[bytes, list[tuple[int, int]]]:  # fmt: skip
    """(.eh_frame or .debug_frame, (function, FDE) vaddrs). word: of absolute addresses, in .debug_frame."""
    assembler, found = CfiAssembler(is_eh=is_eh), []
    at = assembler.cie(cie)
    for i, program in enumerate(programs):
        start = text + FUNCTION * i
        field_address = frame + len(assembler.data) + 8
        encoded = struct.pack("<i", start - field_address) if is_eh else struct.pack(word, start)
        if program is not None:
            size = struct.pack("<I" if is_eh else word, FUNCTION)
            found.append((start, frame + assembler.fde(at, encoded, size, program, augmented=is_eh)))
    return bytes(assembler.data) + bytes(4), found


def placed(machine: int, parts: Callable[[Callable[[str], int]], list[Part]]) -> bytes:
    """An ELF whose sections' contents depend on where sections come to lie: laid out twice."""
    file = write_elf(machine, parts(lambda name: 0))
    return write_elf(machine, parts(lambda name: section_offset(file, name, machine)))


def library(
    machine: int, programs: Sequence[Program], *more: Part, cie: Cie | None = None, code: bytes = b""
) -> bytes:
    """.text with a function per program, .eh_frame and its header, and `more` sections. code: fills the functions."""

    def parts(offset: Callable[[str], int]) -> list[Part]:
        frame, fdes = cfi(cie or ENTRY[machine], programs, offset(".text"), offset(".eh_frame"))
        hdr = eh_frame_hdr(offset(".eh_frame_hdr"), offset(".eh_frame"), fdes)
        text = (code or b"\0\0\0\0").ljust(FUNCTION, b"\0") * len(programs)
        return [Part(".text", text, flags=6), Part(".eh_frame", frame), Part(".eh_frame_hdr", hdr, segment=PT_GNU_EH_FRAME), *more]  # fmt: skip

    return placed(machine, parts)


def filled(programs: Sequence[Program], code: bytes = STOPPING) -> bytes:
    """library() of x86_64 whose functions are 8 bytes of code again and again."""
    return library(X86_64, programs, code=code * (FUNCTION // 8))


def address(file: bytes, machine: int, function: int, at: int = 8) -> int:
    """In the process: `at` bytes behind the start of the n-th function of a file that is mapped at BASE."""
    return BASE + section_offset(file, ".text", machine) + FUNCTION * function + at


def unwind(folder: Path, machine: int, file: bytes | None, registers: dict[str, int], words: Sequence[int], *, maps: str = "", **options: Any) -> tuple[list[SnapshotFrame], TraceEnd]:  # fmt: skip
    """The frames of a stack at STACK in a process that has the file at BASE, by way of a snapshot folder."""
    word = "<Q" if WIDE[machine] else "<I"
    given = {("rsp" if machine == X86_64 else "sp"): STACK, **registers}
    (folder / "regs.txt").write_text("".join(f"{name}: {value:x}\n" for name, value in given.items()))
    (folder / "maps.txt").write_text(maps or f"{BASE:x}-{BASE + 0x10000:x} r-xp 00000000 00:00 0 /a.so\n")
    stack = b"".join(struct.pack(word, value) for value in words)
    (folder / "stack.data").write_bytes(struct.pack("<Q", STACK) + stack)
    if file is not None:
        (folder / "a.so").write_bytes(file)
    return Snapshot(folder, SnapshotOptions(**options)).unwind()
