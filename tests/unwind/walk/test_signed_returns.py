"""arm64 code built with pointer authentication: CFI says where a return address is signed, the target with which bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memleak_android.unwind import AddressSpace, BatchUnwinder, Mapping, Method, Module, SampleBatch, TraceEnd
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.step import unwind_sample
from tests.support.arm64_compiler import shared_library

PROGRAM = """
int other(int);
__attribute__((noinline)) int inner(int x) { return other(x) + 1; }
__attribute__((noinline)) int outer(int x) { return inner(x) * 3; }
"""
BASE, STACK = 0x7B_0000_0000, 0x7C_0000_0000
SIGNATURE = 0x0035_AA80_0000_0000


class One:
    def __init__(self, module: Module) -> None:
        self.opened = module

    def module(self, space: int, mapping: Mapping) -> Module:
        return self.opened


def calls(module: Module) -> list[int]:
    """vaddrs behind each `bl` of the text."""
    text = module.section(".text")
    assert text is not None
    words = np.frombuffer(module.bytes_at(text.vaddr, text.size), "<u4")
    return [text.vaddr + 4 * i + 4 for i in np.flatnonzero(words >> 26 == 0b100101).tolist()]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Module:
    folder: Path = tmp_path_factory.mktemp("signed")
    return shared_library(folder, PROGRAM, "-O1", "-mbranch-protection=pac-ret")


def sample(library: Module, signature: int) -> tuple[SampleBatch, AddressSpace, list[int]]:
    """Stopped behind inner's call; inner and outer have frames of 16 bytes, x29 and x30 in each."""
    (code,) = [s for s in library.segments if s.is_executable]
    start = BASE + code.vaddr
    mapping = Mapping(
        start - start % 4096, start + code.memory_bytes, "r-xp", code.file_offset - start % 4096, "/a.so"
    )
    in_inner, in_outer = (BASE + vaddr for vaddr in calls(library)[:2])
    words = np.zeros(16, np.uint64)
    rows = [library.table.row_at(vaddr - 4) for vaddr in calls(library)[:2]]
    at = 0
    for row, caller in zip(rows, (in_outer, 0), strict=True):
        assert row is not None and row.is_return_signed
        record = next(r.offset for r in row.rules if r.register == 29)
        words[at // 8], words[at // 8 + 1] = STACK + at - record, caller | (signature if caller else 0)
        at -= record
    arch = library.arch
    registers = np.zeros((1, len(arch.registers)), np.uint64)
    registers[0, [arch.pc, arch.sp, arch.fp]] = in_inner, STACK, STACK
    zero = np.zeros(1, np.int64)
    samples = SampleBatch(
        arch,
        registers,
        np.ones(registers.shape, np.bool_),
        np.array([STACK], np.uint64),
        zero,
        zero + 128,
        words.view(np.uint8),
        np.zeros(1, np.int32),
        np.ones(1, np.bool_),
    )
    return samples, AddressSpace([mapping]), [in_inner, in_outer]


@pytest.mark.parametrize("signature", [0, SIGNATURE])
@pytest.mark.parametrize("mask", [None, 0x007F_FF80_0000_0000])
def test_the_signature_goes(library: Module, signature: int, mask: int | None) -> None:
    samples, space, expected = sample(library, signature)
    many = replace(
        samples,
        **{
            name: np.repeat(getattr(samples, name), 3, 0)
            for name in (
                "registers",
                "known",
                "stack_address",
                "stack_offset",
                "stack_length",
                "space",
                "at_return",
            )
        },
    )
    traces = BatchUnwinder([space], One(library), signature_mask=mask).unwind(many)
    assert traces.address.tolist() == expected * 3
    assert traces.end.tolist() == [TraceEnd.ROOT] * 3
    frames, end = unwind_sample(
        samples, 0, Planner(samples.arch, [space], One(library), signature_mask=mask), 64
    )
    assert [f.address for f in frames] == expected and end is TraceEnd.ROOT
    assert frames[1].method is Method.EH_FRAME


def test_a_mask_that_says_no_bits_leaves_it(library: Module) -> None:
    samples, space, expected = sample(library, SIGNATURE)
    traces = BatchUnwinder([space], One(library), signature_mask=0).unwind(samples)
    assert traces.address.tolist() == [expected[0], expected[1] | SIGNATURE]
    assert traces.end.tolist() == [TraceEnd.NO_MAPPING]


@pytest.mark.parametrize("bits", [39, 47, 52])
def test_signatures_begin_where_the_last_mapping_ends(library: Module, bits: int) -> None:
    """The kernel's page for uprobes ends where user addresses do: it takes no bit more (xol_add_vma() of uprobes.c)."""
    page = Mapping((1 << bits) - 4096, 1 << bits, "--xp", 0, "[uprobes]")
    planner = Planner(library.arch, [AddressSpace([page])], One(library))
    assert planner.signature_mask(0) == (1 << 55) - (1 << bits)
