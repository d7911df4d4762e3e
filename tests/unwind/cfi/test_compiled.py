"""Whole files compiled at once: the same rows as the scalar decoder's, address by address."""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import Module
from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.cfi import engine_rows, table
from memleak_android.unwind.cfi.compiled import ASK, compile_table
from memleak_android.unwind.cfi.rules import UnwindRow
from memleak_android.unwind.cfi.section import CfiSection
from memleak_android.unwind.cfi.table import CfiSource, UnwindTable
from memleak_android.unwind.engine.library import library_path, load
from memleak_android.unwind.trace import Method
from tests.support.builders.cfi_assembler import CfiAssembler, Cie, advance, block, offset, op, restore
from tests.support.corpus import CORPUS

FILES = [
    Path("/usr/lib/x86_64-linux-gnu/libc.so.6"),
    Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6"),
    CORPUS / "photos_reset_arm64" / "libart.so",
    CORPUS / "photos_reset_arm64" / "boot.oat",
    CORPUS / "gnu_debugdata_arm" / "libandroid_runtime.so",
    CORPUS / "jit_map_arm" / "libart.so",
    CORPUS / "debug_frame_first_x86" / "waiter",
]


@pytest.fixture(autouse=True, scope="module")
def one_by_one() -> Iterator[None]:
    """A lazy table does not decode functions together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_AHEAD_MIN", 1 << 60)
        yield


@pytest.fixture(scope="module", params=["engine", "python"])
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs run by the compiled engine, or without it."""
    if request.param == "engine" and load(library_path()) is None:
        pytest.skip("no compiled engine for this machine (make device builds it)")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(engine_rows, "load", lambda path: None)
        yield


def ahead_rows_at(unwind_table: UnwindTable, vaddrs: np.ndarray) -> list[UnwindRow | int]:
    """As rows_at, decoding as many functions together as can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_AHEAD_MIN", 1)
        return list(rows_at(unwind_table, vaddrs))


EDGES_MAX = 3_000


def rows_at(unwind_table: UnwindTable, vaddrs: np.ndarray) -> Iterator[UnwindRow | int]:
    for row_id in unwind_table.row_ids(vaddrs.astype(np.uint64)).tolist():
        yield unwind_table.rows[row_id] if row_id >= 0 else row_id


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_compiled_files_have_the_same_rows(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{path} is not here")
    lazy, whole = Module.from_path(path), Module.from_path(path)
    compiled = compile_table(whole.arch, whole.table.sources)
    whole.table.compile_with(compiled)
    edges = np.concatenate([compiled.starts, compiled.starts - np.uint64(1), compiled.starts + np.uint64(4)])
    edges = edges[:: len(edges) // EDGES_MAX + 1]
    expected = list(rows_at(lazy.table, edges))
    assert expected == list(rows_at(whole.table, edges))
    assert expected == ahead_rows_at(Module.from_path(path).table, edges)
    assert (compiled.find(edges) == ASK).mean() < 0.15


INSTRUCTIONS = st.one_of(
    st.integers(0, 63).map(advance),
    st.builds(offset, st.sampled_from([3, 6, 12, 13, 14, 15, 16, 17]), st.sampled_from([1, 2, 6, 130, 20000])),
    st.sampled_from([3, 6, 12]).map(restore),
    st.sampled_from([8, 16, 64, 136, 5000, 2**20, 2**30, 2**63]).map(lambda n: op(0x0E, n)),
    st.sampled_from([6, 7, 200]).map(lambda n: op(0x0D, n)),
    st.builds(lambda r, n: op(0x0C, r, n), st.sampled_from([6, 7, 10]), st.sampled_from([8, 16, 300])),
    st.sampled_from([op(0x0A), op(0x0A), op(0x0B), op(0x00), op(0x2D), op(0x2E, 48), op(0x07, 16), op(0x08, 3)]),
    st.builds(lambda n: op(0x02, bytes([n])), st.integers(0, 255)),
    st.builds(lambda n: op(0x03, struct.pack("<H", n)), st.integers(0, 400)),
    st.builds(lambda n: op(0x05, 13, n), st.integers(0, 300)),
    st.sampled_from([op(0x0F, block(b"\x77\x08")), op(0x10, 3, block(b"\x77\x08")), op(0x11, 3, b"\x7e"), b"\x3c", b"\x0e"]),
)  # fmt: skip
FUNCTIONS = st.lists(
    st.tuples(st.lists(INSTRUCTIONS, max_size=8), st.integers(0, 3)), min_size=30, max_size=70
)


def section_of(functions: list[tuple[list[bytes], int]]) -> CfiSection:
    """A function each 0x100 bytes, of 0x80, 0x100 or 0x180 (into the next); four CIEs, one malformed."""
    assembler = CfiAssembler()
    begin = op(0x0C, 7, 8) + offset(16, 1)
    cies = [
        assembler.cie(Cie(begin + offset(3, 2), "zR", b"\x00")),
        assembler.cie(Cie(begin, "zRS", b"\x00", code_align=4)),
        assembler.cie(Cie(op(0x0F, block(b"\x77\x08")), "zR", b"\x00")),
        assembler.cie(Cie(b"\x3c", "zR", b"\x00")),
    ]
    for i, (program, kind) in enumerate(functions):
        size = (0x80, 0x100, 0x180)[(i * 7 + kind) % 3] if i % 5 == 0 else 0x100
        start, length = struct.pack("<Q", 0x1000 + 0x100 * i), struct.pack("<Q", size)
        assembler.fde(cies[kind if i % 4 == 0 else 0], start, length, program, augmented=True)
    return CfiSection(bytes(assembler.data), 0x90000, Method.EH_FRAME, 8)


DAMAGE = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=30)


@settings(max_examples=30)
@given(FUNCTIONS, st.one_of(st.just([]), DAMAGE))
def test_programs_of_all_instructions_and_damaged_sections(
    decoder: None, functions: list[tuple[list[bytes], int]], damage: list[tuple[int, int]]
) -> None:
    """Those that the lock-step runs, and those that it must give back."""
    section = section_of(functions)
    data = bytearray(section.data)
    for at, byte in damage:
        data[at % len(data)] = byte
    section.data = bytes(data)
    lazy, whole = (UnwindTable(ARCH, [CfiSource(section, None)]) for _ in range(2))
    whole.compile_with(compile_table(ARCH, whole.sources))
    vaddrs = np.arange(0xFF0, 0x1000 + 0x100 * (len(functions) + 1), 3)
    expected = list(rows_at(lazy, vaddrs))
    assert expected == list(rows_at(whole, vaddrs))
    assert expected == ahead_rows_at(UnwindTable(ARCH, [CfiSource(section, None)]), vaddrs)


def test_compiled_rows_answer_without_the_sources() -> None:
    """The lazy way is not taken for what was compiled, nor for addresses that have no rule at all."""
    source = CfiSource(section_of([([op(0x0E, 16)], 0)] * 60), None)
    whole = UnwindTable(ARCH, [source])
    whole.compile_with(compile_table(ARCH, [source]))
    source.section.data = b""
    source.index = None
    before, inside, behind = rows_at(whole, np.array([0xFFF, 0x1010, 0x1000 + 0x100 * 60 + 0x90]))
    assert isinstance(inside, UnwindRow) and inside.cfa_offset == 16 and before == behind == -1
