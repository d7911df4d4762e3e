"""Functions that only jump to another function, such as an allocator's `operator delete` to its free.

One call runs both, so probes on both would count a block twice.
"""

from __future__ import annotations

import numpy as np

from memleak_android.host.elf.dynamic import DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, ElfFile
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.unwind.code.disassembly import Flow, Instruction

_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_HOPS_MAX = 4
_STUB_BYTES = 32  # a PLT entry has at most 16, a forwarding function fewer


def follow_jumps(elf: ElfFile, vaddr: int) -> tuple[set[int], str]:
    """The addresses that a function's first instructions jump to, and the name behind a PLT entry.

    Empty and "" for a function with other instructions first.
    """
    arch = PROBED_ARCHES[elf.machine]
    passed: set[int] = set()
    for _ in range(_HOPS_MAX):
        offset = elf.file_offset(vaddr)
        code = elf.bytes_from(offset, _STUB_BYTES) if offset is not None else b""
        decoded = [item for item in arch.decode(code, vaddr) if item.mnemonic != arch.landing]
        if decoded and decoded[0].flow is Flow.JUMP and decoded[0].target is not None:
            vaddr = decoded[0].target
            passed.add(vaddr)
            continue
        slot = _slot(decoded)
        return passed, "" if slot is None else _name_in_slot(elf, slot)
    return passed, ""


def _slot(stub: list[Instruction]) -> int | None:
    """The slot of the global offset table through which a PLT entry jumps."""
    if not stub:
        return None
    through = stub[0].memory[0] if stub[0].memory else None
    if stub[0].flow is Flow.JUMP and through is not None and through.base == "rip":
        return stub[0].end + through.displacement
    if [item.mnemonic for item in stub[:2]] != ["adrp", "ldr"] or not any(
        item.flow is Flow.JUMP and item.is_indirect for item in stub[2:4]
    ):
        return None
    page, loaded = stub[0].operands.partition("#")[2], stub[1].memory[0]
    return int(page, 0) + loaded.displacement if loaded.base in stub[0].writes else None


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
