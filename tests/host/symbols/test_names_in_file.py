"""Names by a file's own tables, and library names out of its dynamic section."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.host.symbols.names_in_file import FunctionNames, FunctionOffset, soname
from memleak_android.unwind import Module
from memleak_android.unwind.elf_image import ElfImage
from tests.support.builders.symbol_elf import ARM, NOTYPE, OBJECT, ElfSymbol, write_elf


def names(*symbols: ElfSymbol, **how: int) -> FunctionNames:
    return names_of(write_elf(list(symbols), **how))  # type: ignore[arg-type]


def names_of(data: bytes) -> FunctionNames:
    return FunctionNames(ElfImage(memoryview(data), ""))


def test_tables_need_not_be_sorted() -> None:
    found = names(ElfSymbol("b", 0x1100, 16), ElfSymbol("a", 0x1000, 16), ElfSymbol("c", 0x1200, 16))
    assert [found.find(v) for v in (0x1000, 0x1105, 0x120F)] == [
        FunctionOffset("a", 0),
        FunctionOffset("b", 5),
        FunctionOffset("c", 15),
    ]
    assert found.find(0x1010) is None and found.find(0xFFF) is None


def test_symbols_without_size_or_function_type_name_nothing() -> None:
    symbols = (ElfSymbol("a", 0x1000), ElfSymbol("o", 0x1000, 8, OBJECT), ElfSymbol("n", 0x1000, 8, NOTYPE))
    assert names(*symbols, ElfSymbol("undefined", 0x1000, 8, section=0)).find(0x1000) is None


def test_the_first_of_several_names_holds() -> None:
    found = names(
        ElfSymbol("pthread_x", 0x1000, 16), ElfSymbol("__pthread_x", 0x1000, 16), ElfSymbol("x", 0x1000, 4)
    )
    assert found.find(0x1008) == FunctionOffset("pthread_x", 8)


def test_a_function_around_another_one() -> None:
    found = names(ElfSymbol("outer", 0x1000, 0x100), ElfSymbol("inner", 0x1010, 8))
    assert [found.find(v) for v in (0x1014, 0x1020)] == [
        FunctionOffset("inner", 4),
        FunctionOffset("outer", 0x20),
    ]


def test_folded_functions_and_cxx_names_are_as_android_prints_them() -> None:
    found = names(ElfSymbol("[DEDUPED]", 0x1000, 4), ElfSymbol("_Z1fSt6vectorIS_IiSaIiEESaIS1_EE", 0x1004, 4))
    assert found.find(0x1000) == FunctionOffset("[DEDUPED]", 0)
    cxx = found.find(0x1004)
    assert cxx is not None and ">>" not in cxx.function


def test_shifts_keep_their_operator() -> None:
    found = names(ElfSymbol("_ZrsI1AIS0_I1BEEEiRT_i", 0x1000, 4)).find(0x1000)
    assert found is not None and "operator>>" in found.function and "> >" in found.function


def test_bit_0_says_thumb_and_nothing_else() -> None:
    found = names(ElfSymbol("thumb", 0x1001, 8), machine=ARM)
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
