"""The symbol table's rules, one odd case each; names by a file's own tables, and of libraries."""

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.host.symbols.debug_files import open_elf
from memleak_android.host.symbols.names_in_file import FunctionNames, FunctionOffset, soname
from memleak_android.host.symbols.symbol_table import Symbol, SymbolTable
from memleak_android.unwind import Module
from memleak_android.unwind.elf_headers import ElfSections
from memleak_android.unwind.elf_image import ElfImage
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


def names_by(*symbols: ElfSymbol, **how: int) -> FunctionNames:
    return names_of(write_elf(list(symbols), **how))  # type: ignore[arg-type]


def names_of(data: bytes) -> FunctionNames:
    return FunctionNames(ElfImage(memoryview(data), ""))


def test_tables_need_not_be_sorted() -> None:
    found = names_by(ElfSymbol("b", 0x1100, 16), ElfSymbol("a", 0x1000, 16), ElfSymbol("c", 0x1200, 16))
    assert [found.find(v) for v in (0x1000, 0x1105, 0x120F)] == [
        FunctionOffset("a", 0),
        FunctionOffset("b", 5),
        FunctionOffset("c", 15),
    ]
    assert found.find(0x1010) is None and found.find(0xFFF) is None


def test_symbols_without_size_or_function_type_name_nothing() -> None:
    symbols = (ElfSymbol("a", 0x1000), ElfSymbol("o", 0x1000, 8, OBJECT), ElfSymbol("n", 0x1000, 8, NOTYPE))
    assert names_by(*symbols, ElfSymbol("undefined", 0x1000, 8, section=0)).find(0x1000) is None


def test_the_first_of_several_names_holds() -> None:
    found = names_by(
        ElfSymbol("pthread_x", 0x1000, 16), ElfSymbol("__pthread_x", 0x1000, 16), ElfSymbol("x", 0x1000, 4)
    )
    assert found.find(0x1008) == FunctionOffset("pthread_x", 8)


def test_a_function_around_another_one() -> None:
    found = names_by(ElfSymbol("outer", 0x1000, 0x100), ElfSymbol("inner", 0x1010, 8))
    assert [found.find(v) for v in (0x1014, 0x1020)] == [
        FunctionOffset("inner", 4),
        FunctionOffset("outer", 0x20),
    ]


def test_folded_functions_and_cxx_names_are_as_android_prints_them() -> None:
    found = names_by(
        ElfSymbol("[DEDUPED]", 0x1000, 4), ElfSymbol("_Z1fSt6vectorIS_IiSaIiEESaIS1_EE", 0x1004, 4)
    )
    assert found.find(0x1000) == FunctionOffset("[DEDUPED]", 0)
    cxx = found.find(0x1004)
    assert cxx is not None and ">>" not in cxx.function


def test_shifts_keep_their_operator() -> None:
    found = names_by(ElfSymbol("_ZrsI1AIS0_I1BEEEiRT_i", 0x1000, 4)).find(0x1000)
    assert found is not None and "operator>>" in found.function and "> >" in found.function


def test_bit_0_says_thumb_and_nothing_else() -> None:
    found = names_by(ElfSymbol("thumb", 0x1001, 8), machine=ARM)
    assert found.find(0x1000) == found.find(0x1001) == FunctionOffset("thumb", 0)
    assert found.find(0x1005) == FunctionOffset("thumb", 4)


def library(strings: bytes, offset: int, size: int | None = None, tags: bytes = b"") -> Module:
    """A library whose .dynstr ends the file, without section headers."""
    load, dynamic = 0x40 + 2 * 56, 0x40 + 2 * 56 + 64
    body = tags + struct.pack("<QQQQQQ", 5, dynamic, 14, offset, 10, len(strings) if size is None else size)
    body = body.ljust(64, b"\0")
    end = dynamic + len(strings)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    header += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, end, end, 4096)
    header += struct.pack("<IIQQQQQQ", 2, 4, load, load, load, len(body), len(body), 8)
    return Module.from_bytes(header + body + strings)


@pytest.mark.parametrize(
    ("strings", "offset", "name"),
    [
        (b"\0libx.so\0more\0", 1, "libx.so"),
        (b"\0more\0libx.so\0", 6, "libx.so"),  # at the very end
        (b"\0more\0libx.so", 6, "libx.so"),  # and without its zero
        (b"\0libx.so\0", 90, ""),
        (b"", 0, ""),
    ],
)
def test_library_names(strings: bytes, offset: int, name: str) -> None:
    assert soname(library(strings, offset)) == name


def test_a_library_name_ends_with_its_table() -> None:
    assert soname(library(b"\0libx.soXYZ", 1, 8)) == "libx.so"


@given(st.binary(max_size=120), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_any_dynamic_section_gives_a_name_or_none(strings: bytes, offset: int, size: int) -> None:
    assert len(soname(library(strings, offset, size))) <= 4096
