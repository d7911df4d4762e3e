"""Names by which a file's functions can be called through slots (PLT, GOT), and those that it calls so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.sections import STT_FUNC

# System V gABI, chapter 5; the tables of relocations and their sizes in bytes.
_DT_TABLES = ((23, 2), (7, 8))  # JMPREL and PLTRELSZ, RELA and RELASZ
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


def exported_names(elf: ElfFile, file_offset: int) -> list[str]:
    """All names under which the file exports the function there."""
    functions, is_there, strings = _functions(elf, file_offset)
    return _names(functions[is_there], strings)


def names_of_several(elf: ElfFile, file_offset: int) -> list[str]:
    """Of those the names under which it exports other functions too: versions of a symbol (name@V1, name@@V2)."""
    functions, is_there, strings = _functions(elf, file_offset)
    is_named_so = np.isin(functions["name"], functions["name"][is_there])
    return _names(functions[is_named_so & ~is_there], strings)


def _functions(elf: ElfFile, file_offset: int) -> tuple[NDArray[np.void], NDArray[np.bool_], bytes]:
    """What the file exports, which of it is the function there, and the table of names."""
    symbols, text = elf.dynamic_symbols(), elf.text_segment(file_offset)
    if symbols is None or text is None:
        return np.empty(0, [("name", "<u4")]), np.empty(0, bool), b""
    table, strings = symbols
    functions = table[(table["section"] != 0) & (table["info"] & 0xF == STT_FUNC)]
    return functions, functions["value"] == text.vaddr + file_offset - text.file_offset, strings


def called_names(elf: ElfFile) -> set[str]:
    """Of a 64-bit file: what it imports, and what of its own it calls by way of the linker."""
    symbols = elf.dynamic_symbols()
    if symbols is None:
        return set()
    table, strings = symbols
    is_called = table["section"] == 0
    for place, size in _DT_TABLES:
        for address, n_bytes in zip(elf.dynamic.get(place, ()), elf.dynamic.get(size, ()), strict=False):
            offset = elf.file_offset(address)
            raw = elf.slice(offset, n_bytes // _RELA.itemsize * _RELA.itemsize) if offset is not None else b""
            index = np.frombuffer(raw, _RELA)["symbol"]
            is_called[index[index < len(table)]] = True
    return set(_names(table[is_called], strings))


def _names(rows: NDArray[np.void], strings: bytes) -> list[str]:
    found = {strings[at : strings.find(b"\0", at)] for at in rows["name"].tolist()}
    return sorted(one.decode("utf-8", "surrogateescape") for one in found if one)
