"""Each call frame instruction and each form of CIE and FDE, from bytes written by hand."""

import hashlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.cfi.section import CfiSection
from memleak_android.unwind.cfi.sources import parse_hdr
from memleak_android.unwind.cfi.table import CfiSource, UnwindTable
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.trace import Method
from tests.support.builders.cfi_assembler import (
    CfiAssembler,
    Cie,
    advance,
    block,
    offset,
    op,
    restore,
    sleb,
    uleb,
)

START, LENGTH = 0x1000, 0x100
RBX, RBP, RSP, R12, RIP = 3, 6, 7, 12, 16
CIE = Cie(op(0x0C, RSP, 8) + offset(RIP, 1))  # CFA = rsp+8, return address at CFA-8


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def source_of(
    *program: bytes,
    cie: Cie = CIE,
    method: Method = Method.EH_FRAME,
    wide: bool = False,
    wide_id: bool = False,
) -> CfiSource:
    assembler = CfiAssembler(method is Method.EH_FRAME, wide, wide_id)
    at = assembler.cie(cie)
    assembler.fde(at, u64(START), u64(LENGTH), program, cie.augmentation.startswith("z"))
    is_eh = method is Method.EH_FRAME
    return CfiSource(CfiSection(bytes(assembler.data), 0x5000, method, 8, is_eh=is_eh), None)


def table_of(*program: bytes, cie: Cie = CIE) -> UnwindTable:
    return UnwindTable(ARCH, [source_of(*program, cie=cie)])


def row_of(*program: bytes, at: int = LENGTH - 1, cie: Cie = CIE) -> UnwindRow:
    row = table_of(*program, cie=cie).row_at(START + at)
    assert row is not None
    return row


def rule_of(row: UnwindRow, register: int) -> tuple[RuleKind, int, bytes] | None:
    return next(((r.kind, r.offset, r.expression) for r in row.rules if r.register == register), None)


@pytest.mark.parametrize(
    ("program", "register", "rule"),
    [
        (offset(RBX, 2), RBX, (RuleKind.OFFSET, -16, b"")),
        (op(0x05, RBX, 2), RBX, (RuleKind.OFFSET, -16, b"")),  # offset_extended is factored
        (op(0x11, RBX, sleb(-2)), RBX, (RuleKind.OFFSET, 16, b"")),
        (op(0x14, RBX, 2), RBX, (RuleKind.VAL_OFFSET, -16, b"")),
        (op(0x15, RBX, sleb(-2)), RBX, (RuleKind.VAL_OFFSET, 16, b"")),
        (op(0x2F, RBX, 2), RBX, (RuleKind.OFFSET, 16, b"")),
        (op(0x07, RBX), RBX, (RuleKind.UNDEFINED, 0, b"")),
        (op(0x08, RBX), RBX, (RuleKind.SAME_VALUE, 0, b"")),
        (op(0x09, RBX, R12), RBX, (RuleKind.REGISTER, R12, b"")),
        (op(0x10, RBX, block(b"\x77\x08")), RBX, (RuleKind.EXPRESSION, 0, b"\x77\x08")),
        (op(0x16, RBX, block(b"\x77\x08")), RBX, (RuleKind.VAL_EXPRESSION, 0, b"\x77\x08")),
        (offset(RBX, 2) + restore(RBX), RBX, None),
        (op(0x07, RIP) + restore(RIP), RIP, (RuleKind.OFFSET, -8, b"")),  # back to the CIE's rule
        (op(0x07, RIP) + op(0x06, RIP), RIP, (RuleKind.OFFSET, -8, b"")),
        (op(0x2E, 64), RBX, None),  # GNU_args_size
    ],
)
def test_register_rules(program: bytes, register: int, rule: object) -> None:
    assert rule_of(row_of(program), register) == rule


@pytest.mark.parametrize(
    ("program", "cfa"),
    [
        (op(0x0C, RBP, 16), (RBP, 16, b"")),
        (op(0x12, RBP, sleb(-2)), (RBP, 16, b"")),  # def_cfa_sf is factored by the data alignment
        (op(0x0D, RBP), (RBP, 8, b"")),
        (op(0x0E, 32), (RSP, 32, b"")),
        (op(0x0E, 2**64 - 224), (RSP, -224, b"")),
        (op(0x0C, RBP, 2**64 - 16), (RBP, -16, b"")),
        (op(0x13, sleb(-3)), (RSP, 24, b"")),
        (op(0x0F, block(b"\x77\x08\x06")), (-1, 0, b"\x77\x08\x06")),
    ],
)
def test_cfa_rules(program: bytes, cfa: object) -> None:
    row = row_of(program)
    assert (row.cfa_register, row.cfa_offset, row.cfa_expression) == cfa


@pytest.mark.parametrize(
    "instruction",
    [
        advance(0x10),
        op(0x02, b"\x10"),
        op(0x03, b"\x10\0"),
        op(0x04, b"\x10\0\0\0"),
        op(0x1D, u64(0x10)),
        op(0x01, u64(START + 0x10)),
    ],
)
def test_advances(instruction: bytes) -> None:
    table = table_of(instruction, op(0x0E, 16))
    before, after = table.row_at(START + 0xF), table.row_at(START + 0x10)
    assert before is not None and after is not None
    assert (before.cfa_offset, after.cfa_offset) == (8, 16)


def test_addresses_outside_have_no_row() -> None:
    table = table_of()
    assert table.row_at(START - 1) is None and table.row_at(START + LENGTH) is None
    assert table.row_at(START) is not None and table.row_at(START + LENGTH - 1) is not None


@pytest.mark.parametrize(
    "program",
    [
        b"\x3c",
        op(0x0B),
        op(0x0C, 5000, 0),
        advance(1) + b"\x01",
        op(0x0F, block(b"")),
        op(0x0F, block(b"\x77\0")) + op(0x0E, 8),
    ],
    ids=["unknown", "restore_first", "register", "set_loc_cut", "empty_expression", "offset_of_expression"],
)
def test_malformed_programs_differ_from_absent_ones(program: bytes) -> None:
    with pytest.raises(BadCfiError):
        table_of(program).row_at(START)


def test_an_augmentation_longer_than_its_cie() -> None:
    source = source_of(cie=Cie(CIE.initial, "zR", b"\0"))
    source.section.data = source.section.data.replace(b"\x10\x01\0", b"\x10\x7f\0")
    assert UnwindTable(ARCH, [source]).row_at(START) is None


@pytest.mark.parametrize("version", [1, 3, 4])
@pytest.mark.parametrize(("wide", "wide_id"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("method", [Method.EH_FRAME, Method.DEBUG_FRAME])
def test_versions_widths_and_sections(version: int, wide: bool, wide_id: bool, method: Method) -> None:
    cie = Cie(CIE.initial, version=version)
    source = source_of(op(0x0E, 24), cie=cie, method=method, wide=wide, wide_id=wide_id)
    row = UnwindTable(ARCH, [source]).row_at(START)
    assert row is not None and row.cfa_offset == 24 and row.method is method


def test_augmentations() -> None:
    data = b"\x00" + b"\x00" + u64(0x1234)  # R absptr, P absptr
    row = row_of(cie=Cie(CIE.initial, "zRPS", data))
    assert row.is_signal
    assert not row_of(cie=Cie(CIE.initial, "zRP", data)).is_signal
    # unknown letters are skipped by their length
    assert row_of(op(0x0E, 40), cie=Cie(CIE.initial, "zRX", b"\0abc")).cfa_offset == 40


SECTION = 0x5000
FIELD = SECTION + 36  # where the FDE behind a CIE of `encoded` has its start


def encoded(
    encoding: int, start: bytes, length: bytes, *program: bytes, vaddr: int = SECTION, **more: Any
) -> UnwindTable:
    """One function, its pointers encoded so."""
    assembler = CfiAssembler()
    at = assembler.cie(Cie(CIE.initial, "zR", bytes([encoding])))
    assert vaddr + len(assembler.data) + 8 == FIELD + vaddr - SECTION
    assembler.fde(at, start, length, program, augmented=True)
    section = CfiSection(bytes(assembler.data), vaddr, Method.EH_FRAME, 8, **more)
    return UnwindTable(ARCH, [CfiSource(section, None)])


def offsets_at(table: UnwindTable, *distances: int) -> list[int]:
    """Of the CFA, so far behind the function's start."""
    return [row.cfa_offset for row in (table.row_at(START + at) for at in distances) if row]


@pytest.mark.parametrize(
    ("encoding", "form"),
    [
        (0x00, "<Q"),
        (0x02, "<H"),
        (0x03, "<I"),
        (0x04, "<Q"),
        (0x0A, "<h"),
        (0x0B, "<i"),
        (0x0C, "<q"),
        (0x01, ""),
        (0x09, ""),
    ],
)
@pytest.mark.parametrize("application", [0x00, 0x10, 0x20, 0x30])
def test_pointer_encodings(encoding: int, form: str, application: int) -> None:
    section, text, data = 0x800, 0x900, 0x980
    base = {0: 0, 0x10: section + FIELD - SECTION, 0x20: text, 0x30: data}[application]

    def encode(value: int) -> bytes:
        return struct.pack(form, value) if form else (uleb if encoding == 1 else sleb)(value)

    start, length = encode(START - base), encode(LENGTH)
    where = {"vaddr": section, "text": text, "base": data}
    table = encoded(encoding | application, start, length, op(0x0E, 24), **where)
    assert offsets_at(table, 5) == [24]


@pytest.mark.parametrize(
    ("encoding", "form"), [(0x3B, "<i"), (0x33, "<I"), (0x3C, "<q"), (0x0C, "<q"), (0x00, "<Q"), (0x1B, "<i")]
)
def test_hdr_tables_of_every_fixed_form(encoding: int, form: str) -> None:
    assembler = CfiAssembler()
    at = assembler.cie(CIE)
    entries = [(s, 0x5000 + assembler.fde(at, u64(s), u64(0x10), [])) for s in (0x6000, 0x7000, 0x8000)]
    cfi = CfiSection(bytes(assembler.data), 0x5000, Method.EH_FRAME, 8)
    hdr = bytearray(struct.pack("<BBBBiI", 1, 0x1B, 0x03, encoding, 0x5000 - 0x4004, 3))
    for value in (v for entry in entries for v in entry):
        base = {0x30: 0x4000, 0x10: 0x4000 + len(hdr), 0: 0}[encoding & 0x70]
        hdr += struct.pack(form, value - base)
    index = parse_hdr(bytes(hdr), 0x4000, cfi)
    assert index is not None
    assert index.starts.tolist() == [0x6000, 0x7000, 0x8000]
    assert index.offsets.tolist() == [vaddr - 0x5000 for _, vaddr in entries]


@pytest.mark.parametrize(
    ("encoding", "second"),
    [(0x39, 16), (0x2B, 16), (0x5B, 16), (0x3B, -16)],
    ids=["sleb", "textrel", "aligned", "unsorted"],
)
def test_hdr_tables_that_cannot_be_searched(encoding: int, second: int) -> None:
    cfi = CfiSection(b"", 0x5000, Method.EH_FRAME, 8)
    hdr = struct.pack("<BBBBiIiiii", 1, 0x1B, 0x03, encoding, 0, 2, 0, 0, second, 0)
    assert parse_hdr(hdr, 0x4000, cfi) is None


def test_a_table_that_claims_2_to_the_60_entries() -> None:
    cfi = CfiSection(b"", 0x5000, Method.EH_FRAME, 8)
    hdr = b"\x01\x1b\x04\x3b" + bytes(4) + u64(1 << 60) + struct.pack("<iiii", 0x10, 0x20, 0x30, 0x40)
    index = parse_hdr(hdr, 0x4000, cfi)
    assert index is not None and index.starts.tolist() == [0x4010, 0x4030]


def test_indirect_pointers_are_read_through() -> None:
    """DW_EH_PE_indirect | pcrel | sdata4: the function's start stands in a word of the file."""
    start, length = struct.pack("<i", 0x9000 - FIELD), struct.pack("<i", 0x10)
    words = {0x9000: START}
    assert offsets_at(encoded(0x9B, start, length, op(0x0E, 24), read_word=words.get), 0) == [24]
    assert encoded(0x9B, start, length, op(0x0E, 24)).row_at(START) is None


def test_function_relative_locations() -> None:
    """DW_CFA_set_loc with DW_EH_PE_funcrel, which counts from the function's own start."""
    start, length, there = (struct.pack("<I", value) for value in (START, LENGTH, 0x20))
    assert offsets_at(encoded(0x43, start, length, op(0x01, there), op(0x0E, 24)), 0x1F, 0x20) == [8, 24]


def test_aligned_pointers() -> None:
    """DW_EH_PE_aligned: padded to a word of the address space, not of the section."""
    for shift in range(8):
        start = bytes(-(FIELD + shift) % 8) + u64(START)
        table = encoded(0x50, start, u64(LENGTH), op(0x0E, 24), vaddr=SECTION + shift)
        assert offsets_at(table, 0) == [24], shift


def test_signed_return_addresses_follow_remembered_states() -> None:
    """DW_CFA_AARCH64_negate_ra_state in the CIE of a key-B function ("zRB"), undone and remembered."""
    toggle, lit = op(0x2D), b"\x30\x31"
    program = (
        *(op(0x0A), toggle, advance(1), op(0x0B), advance(1), toggle, toggle, advance(1)),
        *(op(0x16, 34, block(lit[1:])), advance(1), op(0x16, 34, block(lit[:1])), advance(1), op(0x2C)),
    )
    table = table_of(*program, cie=Cie(CIE.initial, "zRBG", b"\0"))
    rows = [table.row_at(START + i) for i in range(6)]
    assert [row.is_return_signed for row in rows if row] == [True, False, False, True, False, True]
    assert all(rule.register != 34 for row in rows if row for rule in row.rules)


ENTRIES = st.lists(
    st.tuples(st.booleans(), st.sampled_from(range(1 << 16)), st.integers(0, 30)), min_size=14, max_size=40
)


@settings(max_examples=60)
@given(
    st.sampled_from([0x00, 0x03, 0x1B, 0x0B, 0x01, 0x10, 0x30, 0x02]),
    ENTRIES,
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
)
def test_scanning_many_entries_finds_what_reading_each_does(
    encoding: int, entries: list[tuple[bool, int, int]], damage: list[tuple[int, int]]
) -> None:
    """Entries of one CIE are read as arrays, others one by one."""
    assembler = CfiAssembler()
    cies = [assembler.cie(Cie(CIE.initial, "zR", bytes([e]))) for e in (encoding, 0x1B)]
    written = set()
    for which, seed, wide in entries:
        assembler.wide = wide == 0
        body = hashlib.blake2b(seed.to_bytes(2, "little"), digest_size=16).digest()
        written.add(assembler.fde(cies[which], body, b"", [], augmented=True))
    for at, byte in damage:
        assembler.data[at % len(assembler.data)] = byte
    cfi = CfiSection(bytes(assembler.data), 0x5000, Method.EH_FRAME, 8)
    scanned = cfi.scan()
    assert np.all(scanned.starts[1:] >= scanned.starts[:-1])
    found = set(zip(scanned.starts.tolist(), scanned.offsets.tolist(), strict=True))
    readable = set()
    for entry_offset in range(0, len(assembler.data), 4):
        try:
            fde = cfi.fde(entry_offset)
        except BadCfiError:
            continue
        if fde.start and fde.end > fde.start:
            readable.add((fde.start, entry_offset))
    # an entry that is malformed behind its address may be listed: reading it says so
    offsets = {entry_offset for _, entry_offset in readable}
    assert {entry for entry in found if entry[1] in offsets} <= readable
    if not damage:
        assert {entry for entry in readable if entry[1] in written} <= found


def test_terminator_ends_eh_frame() -> None:
    assembler = CfiAssembler()
    at = assembler.cie(CIE)
    assembler.fde(at, u64(0x1000), u64(0x10), [])
    assembler.data += bytes(4)
    assembler.fde(at, u64(0x2000), u64(0x10), [])
    cfi = CfiSection(bytes(assembler.data), 0x5000, Method.EH_FRAME, 8)
    assert cfi.scan().starts.tolist() == [0x1000]


def test_debug_frame_comes_first() -> None:
    frames = [source_of(op(0x0E, 32), method=Method.DEBUG_FRAME), source_of(op(0x0E, 16))]
    row = UnwindTable(ARCH, frames).row_at(START)
    assert row is not None and row.method is Method.DEBUG_FRAME and row.cfa_offset == 32


def test_rows_are_shared() -> None:
    table = table_of(op(0x0A), op(0x0E, 16), advance(1), op(0x0B), advance(1), op(0x0E, 16))
    ids = table.row_ids(np.arange(START, START + 3, dtype=np.uint64))
    assert ids[0] == ids[2] != ids[1] and len(table.rows) == 2


@settings(max_examples=400)
@given(st.binary(max_size=60), st.binary(max_size=20))
def test_random_programs_do_no_harm(program: bytes, initial: bytes) -> None:
    table = table_of(program, cie=Cie(CIE.initial + initial))
    for vaddr in (START, START + 1, START + LENGTH - 1):
        try:
            row = table.row_at(vaddr)
        except BadCfiError:
            continue
        assert row is None or all(isinstance(rule, RegisterRule) for rule in row.rules)
