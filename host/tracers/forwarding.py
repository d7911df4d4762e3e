"""Functions that only jump on to another one, such as `operator delete` of an allocator to its free.

Such a pair has one call for one block; two probes would see it twice.
"""

from __future__ import annotations

import numpy as np

from memleak_android.host.device.elf_file import DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, ElfFile
from memleak_android.unwind.disassembly import Flow, decode_x86_64

_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_HOPS_MAX = 4
_STUB_BYTES = 32  # of a PLT entry at most 16, of a forwarding function fewer


def follow_jumps(elf: ElfFile, vaddr: int) -> tuple[set[int], str]:
    """Where a function goes without doing anything: addresses jumped to, and the name behind a PLT entry.

    Empty and "" for a function that does something of its own first.
    """
    passed: set[int] = set()
    for _ in range(_HOPS_MAX):
        offset = elf.file_offset(vaddr)
        code = elf.data[offset : offset + _STUB_BYTES] if offset is not None else b""
        first = next((one for one in decode_x86_64(code, vaddr) if one.mnemonic != "endbr64"), None)
        if first is None or first.flow is not Flow.JUMP:
            return passed, ""
        if first.target is None:
            through = first.memory[0] if first.memory else None
            if through is None or through.base != "rip":
                return passed, ""
            return passed, _name_in_slot(elf, first.end + through.displacement)
        vaddr = first.target
        passed.add(vaddr)
    return passed, ""


def _name_in_slot(elf: ElfFile, slot_vaddr: int) -> str:
    """The symbol whose address the dynamic linker writes into a slot of the global offset table."""
    for table_tag, size_tag in ((DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)):
        if table_tag not in elf.dynamic or size_tag not in elf.dynamic:
            continue
        offset = elf.file_offset(elf.dynamic[table_tag][0])
        if offset is None:
            continue
        size = elf.dynamic[size_tag][0]
        table = np.frombuffer(elf.slice(offset, size - size % _RELA.itemsize), dtype=_RELA)
        for symbol in table["symbol"][table["offset"] == slot_vaddr].tolist():
            if symbol:
                return elf.dynamic_symbol_name(symbol)
    return ""
