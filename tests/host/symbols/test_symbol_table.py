"""The symbol table's rules, one odd case each."""

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.host.symbols.debug_files import open_elf
from memleak_android.host.symbols.symbol_table import Symbol, SymbolTable
from memleak_android.unwind.elf_headers import ElfSections
from memleak_android.unwind.errors import BadElfError
from tests.support.builders.symbol_elf import (
    ARM,
    DATA_INDEX,
    IFUNC,
    LOCAL,
    NOTYPE,
    OBJECT,
    WEAK,
    ElfSymbol,
    write_elf,
)
from tests.support.oracles.symbols import need


def names(symbols: list[ElfSymbol], *vaddrs: int, machine: int = 62) -> list[str]:
    elf = ElfSections(memoryview(write_elf(symbols, machine=machine)))
    found = SymbolTable([elf]).find(np.array(vaddrs, np.uint64))
    return [f"{s.name}@{s.vaddr:x}" if s else "" for s in found]


def test_symbol_without_size_reaches_to_the_next_or_its_sections_end() -> None:
    symbols = [ElfSymbol("a", 0x1000), ElfSymbol("b", 0x1020)]
    assert names(symbols, 0x101F, 0x1020, 0x1FFF, 0x2000) == ["a@1000", "b@1020", "b@1020", ""]


def test_label_without_size_inside_a_function_names_nothing() -> None:
    symbols = [ElfSymbol("f", 0x1000, 0x100), ElfSymbol("label", 0x1040, 0, NOTYPE, LOCAL)]
    assert names(symbols, 0x1050) == ["f@1000"]


def test_the_name_a_person_would_write() -> None:
    aliases = ["__libc_malloc", "malloc", "__malloc", "__GI___libc_malloc"]
    symbols = [ElfSymbol(n, 0x1000, 8, binding=LOCAL if "GI" in n else WEAK) for n in aliases]
    assert names(symbols, 0x1004) == ["malloc@1000"]


def test_versions_are_cut_off() -> None:
    assert names([ElfSymbol("memcpy@@GLIBC_2.14", 0x1000, 8)], 0x1000) == ["memcpy@1000"]


def test_ifunc_counts_data_and_undefined_do_not() -> None:
    symbols = [
        ElfSymbol("strlen", 0x1000, 8, IFUNC),
        ElfSymbol("object", 0x1010, 8, OBJECT),
        ElfSymbol("undefined", 0x1020, 8, section=0),
        ElfSymbol("absolute", 0x1030, 8, section=0xFFF1),
        ElfSymbol("in_data", 0x1040, 8, NOTYPE, section=DATA_INDEX),
    ]
    assert names(symbols, 0x1000, 0x1010, 0x1020, 0x1030, 0x1040) == ["strlen@1000", "", "", "", ""]


def test_arm_thumb_bit_and_mapping_symbols() -> None:
    symbols = [ElfSymbol("thumb", 0x1001, 8), ElfSymbol("$t", 0x1004, 0, NOTYPE, LOCAL)]
    assert names(symbols, 0x1000, 0x1004, machine=ARM) == ["thumb@1000", "thumb@1000"]
    assert names([symbols[1]], 0x1004, machine=ARM) == [""]


def test_size_that_overflows_the_address_space() -> None:
    assert names([ElfSymbol("huge", 0x1000, 2**64 - 1)], 0xFFF, 2**64 - 2) == ["", "huge@1000"]


def test_table_without_symbols() -> None:
    assert SymbolTable([]).find(np.array([0, 1], np.uint64)) == [None, None]
    assert names([], 0x1000) == [""]


@given(
    st.lists(st.tuples(st.integers(0x1000, 0x1040), st.integers(1, 24)), max_size=12),
    st.integers(0xFF0, 0x1060),
)
@settings(max_examples=200)
def test_any_nest_of_ranges_against_a_plain_search(ranges: list[tuple[int, int]], vaddr: int) -> None:
    symbols = [ElfSymbol("f", start, size) for start, size in ranges]
    holding = [start for start, size in ranges if start <= vaddr < start + size]
    assert names(symbols, vaddr) == [f"f@{max(holding):x}" if holding else ""]


def test_libc_against_nm() -> None:
    path = Path("/lib/x86_64-linux-gnu/libc.so.6")
    listing = subprocess.run(
        [need("nm"), "-D", "-S", path], capture_output=True, text=True, check=True
    ).stdout
    functions = [
        line.split() for line in listing.splitlines() if line.split()[-2] in "TWi" and len(line.split()) == 4
    ]
    at: dict[int, set[str]] = {}
    for start, _, _, name in functions:
        at.setdefault(int(start, 16), set()).add(name.split("@")[0])
    assert len(at) > 1_000
    vaddrs = [int(start, 16) + int(size, 16) - 1 for start, size, _, _ in functions]
    found = SymbolTable([open_elf(path)]).find(np.array(vaddrs, np.uint64))
    wrong = [f for f, s in zip(functions, found, strict=True) if s is None or s.name not in at[s.vaddr]]
    assert not wrong
    starts = [s.vaddr == int(f[0], 16) for f, s in zip(functions, found, strict=True) if s]
    assert sum(starts) >= 0.999 * len(starts)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF\x02\x02" + bytes(100)])
def test_no_elf_file(data: bytes) -> None:
    with pytest.raises(BadElfError):
        ElfSections(memoryview(data))


def test_section_count_and_offsets_beyond_the_file() -> None:
    good = bytearray(write_elf([ElfSymbol("f", 0x1000, 8)]))
    for at, layout, value in ((60, "<H", 0xFFFF), (40, "<Q", 2**63), (58, "<H", 1), (62, "<H", 0xFFFF)):
        data = bytearray(good)
        struct.pack_into(layout, data, at, value)
        elf = ElfSections(memoryview(bytes(data)))
        assert len(elf.sections) <= 6
        SymbolTable([elf]).find(np.array([0x1000], np.uint64))


@given(st.binary(max_size=40), st.integers(0, 700))
@settings(max_examples=300)
def test_overwritten_bytes_cost_names_only(patch: bytes, at: int) -> None:
    data = bytearray(write_elf([ElfSymbol("f", 0x1000, 8), ElfSymbol("g", 0x1100)]))
    data[at : at + len(patch)] = patch
    try:
        elf = ElfSections(memoryview(bytes(data)))
    except BadElfError:
        return
    assert len(SymbolTable([elf]).find(np.array([0x1000, 0x1104], np.uint64))) == 2


def test_sections_that_repeat_each_other_without_end() -> None:
    """60,000 headers that each show 1.5 MB of symbols, notes or names: taken whole, 90 GB to read."""
    symbols = [ElfSymbol("f" * 60_000, 0x1000 + i, 1) for i in range(20)] + [
        ElfSymbol("g", 0x1000, 8)
    ] * 10_000
    good = write_elf(symbols)
    table = int.from_bytes(good[40:48], "little")
    symtab, note = good[table + 3 * 64 : table + 4 * 64], bytearray(good[table + 3 * 64 : table + 4 * 64])
    struct.pack_into("<I", note, 4, 7)
    data = bytearray(good[:table] + good[table : table + 6 * 64] + (symtab + bytes(note)) * 30_000)
    struct.pack_into("<H", data, 60, 60_006)
    elf = ElfSections(memoryview(bytes(data)))
    assert len(elf.sections) == 60_006
    assert elf.build_id == ""
    assert len(SymbolTable([elf])) <= 4 * len(symbols)


def test_a_table_does_not_keep_the_file_in_memory() -> None:
    data = bytearray(write_elf([ElfSymbol("f", 0x1000, 8)]))
    table = SymbolTable([ElfSections(memoryview(data))])
    data.clear()  # BufferError while a view of it lives
    assert table.find(np.array([0x1000], np.uint64)) == [Symbol("f", 0x1000)]
