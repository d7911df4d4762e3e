"""Names by which a file's functions can be called through slots (PLT, GOT), and names that the file calls through slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.sections import STT_FUNC

# System V gABI, chapter 5: relocation tables and their sizes in bytes.
_DT_TABLES = ((23, 2), (7, 8))  # JMPREL and PLTRELSZ, RELA and RELASZ
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


def exported_names(elf: ElfFile, file_offset: int) -> list[str]:
    """All names under which the file exports the function at file_offset."""
    functions, is_there, strings = _functions(elf, file_offset)
    return _names(functions[is_there], strings)


def names_of_several(elf: ElfFile, file_offset: int) -> list[str]:
    """Those names that it exports for other functions too: versions of a symbol (name@V1, name@@V2)."""
    functions, is_there, strings = _functions(elf, file_offset)
    is_named_so = np.isin(functions["name"], functions["name"][is_there])
    return _names(functions[is_named_so & ~is_there], strings)


def _functions(elf: ElfFile, file_offset: int) -> tuple[NDArray[np.void], NDArray[np.bool_], bytes]:
    """Exported functions, which of them is the one at file_offset, and the string table."""
    symbols, text = elf.dynamic_symbols(), elf.text_segment(file_offset)
    if symbols is None or text is None:
        return np.empty(0, [("name", "<u4")]), np.empty(0, bool), b""
    table, strings = symbols
    functions = table[(table["section"] != 0) & (table["info"] & 0xF == STT_FUNC)]
    return functions, functions["value"] == text.vaddr + file_offset - text.file_offset, strings


def called_names(elf: ElfFile) -> set[str]:
    """For a 64-bit file: its imports, and its own functions that it calls through the linker."""
    symbols = elf.dynamic_symbols()
    if symbols is None:
        return set()
    table, strings = symbols
    is_called = table["section"] == 0
    for table_tag, size_tag in _DT_TABLES:
        for address, n_bytes in zip(
            elf.dynamic.get(table_tag, ()), elf.dynamic.get(size_tag, ()), strict=False
        ):
            offset = elf.file_offset(address)
            raw = elf.slice(offset, n_bytes // _RELA.itemsize * _RELA.itemsize) if offset is not None else b""
            index = np.frombuffer(raw, _RELA)["symbol"]
            is_called[index[index < len(table)]] = True
    return set(_names(table[is_called], strings))


def _names(rows: NDArray[np.void], strings: bytes) -> list[str]:
    found = {strings[at : strings.find(b"\0", at)] for at in rows["name"].tolist()}
    return sorted(name.decode("utf-8", "surrogateescape") for name in found if name)
