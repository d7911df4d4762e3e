"""A shared object of a few hundred bytes: code that never runs and CFI written by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.support.builders.cfi_assembler import CfiAssembler, Cie, eh_frame_hdr, offset, op

FUNCTION_BYTES = 0x100
CODE_VADDR = 0x1000
PLAIN_CIE = Cie(
    op(0x0C, 7, 8) + offset(16, 1)
)  # x86_64 at a function's entry: CFA = rsp+8, *(CFA-8) = return address
_FRAME_VADDR = 0x8000


STOPPING = b"\xe8\0\0\0\0\xf4\xf4\xf4"  # call; hlt; hlt; hlt
WITH_FRAME_POINTER = b"\x8b\x45\xf8\x90\x90\x90\xff\xe0"  # mov eax,[rbp-8]; nop; nop; nop; jmp rax
WITHOUT_FRAME_POINTER = b"\x90\x90\x90\x90\x90\x90\xff\xe0"  # nop …; jmp rax


def tiny_elf(
    programs: Sequence[Sequence[bytes] | None], cie: Cie = PLAIN_CIE, code: bytes = STOPPING
) -> bytes:
    """One function of FUNCTION_BYTES from CODE_VADDR on per CFI program; None: a function without CFI.

    code: 8 bytes that fill the functions.

    File offsets equal vaddrs. No section headers: .eh_frame is found by PT_GNU_EH_FRAME.
    """
    assembler = CfiAssembler()
    cie_offset = assembler.cie(cie)
    starts = [CODE_VADDR + i * FUNCTION_BYTES for i in range(len(programs))]
    augmented = cie.augmentation.startswith("z")
    fdes = [
        (
            start,
            assembler.fde(
                cie_offset, struct.pack("<Q", start), struct.pack("<Q", FUNCTION_BYTES), program, augmented
            ),
        )
        for start, program in zip(starts, programs, strict=True)
        if program is not None
    ]
    hdr_bytes = 12 + 8 * len(fdes)
    frame_vaddr = _FRAME_VADDR + hdr_bytes + -hdr_bytes % 8
    hdr = eh_frame_hdr(_FRAME_VADDR, frame_vaddr, [(start, frame_vaddr + at) for start, at in fdes])
    image = bytearray(frame_vaddr + len(assembler.data) + 4)
    image[_FRAME_VADDR : _FRAME_VADDR + len(hdr)] = hdr
    image[frame_vaddr : frame_vaddr + len(assembler.data)] = assembler.data
    headers = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )
    headers += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, len(image), len(image), 0x1000)
    headers += struct.pack(
        "<IIQQQQQQ", 0x6474E550, 4, _FRAME_VADDR, _FRAME_VADDR, _FRAME_VADDR, hdr_bytes, hdr_bytes, 4
    )
    image[: len(headers)] = headers
    code_end = CODE_VADDR + len(programs) * FUNCTION_BYTES
    image[CODE_VADDR:code_end] = code * (FUNCTION_BYTES * len(programs) // len(code))
    return bytes(image)
