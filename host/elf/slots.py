"""Names by which a file's functions can be called through slots (PLT, GOT), and names that the file calls through slots."""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.dynamic import RELA, ElfFile
from memleak_android.unwind.elf_headers import STT_FUNC


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
    is_called[_relocations(elf, len(table))["symbol"]] = True
    return set(_names(table[is_called], strings))


def slot_names(elf: ElfFile) -> dict[int, str]:
    """The symbol by the vaddr of its slot, for a 64-bit file."""
    symbols = elf.dynamic_symbols()
    if symbols is None:
        return {}
    table, strings = symbols
    rows = _relocations(elf, len(table))
    rows = rows[rows["symbol"] != 0]
    starts = table["name"][rows["symbol"]].tolist()
    names = [strings[at : strings.find(b"\0", at)].decode("utf-8", "surrogateescape") for at in starts]
    return dict(zip(rows["offset"].tolist(), names, strict=True))


def _relocations(elf: ElfFile, n_symbols: int) -> NDArray[np.void]:
    """Those with a symbol that the table has."""
    rows = np.concatenate([np.empty(0, RELA), *elf.relocations()])
    return rows[rows["symbol"] < n_symbols]


def _names(rows: NDArray[np.void], strings: bytes) -> list[str]:
    found = {strings[at : strings.find(b"\0", at)] for at in rows["name"].tolist()}
    return sorted(name.decode("utf-8", "surrogateescape") for name in found if name)
