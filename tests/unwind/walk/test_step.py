"""Rules of one step on stacks written by hand; lock-step and scalar must agree on each."""

import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import (
    AddressSpace,
    Mapping,
    Method,
    SampleBatch,
    TraceBatch,
    TraceEnd,
    unwind_batch,
)
from memleak_android.unwind.arch.x86_64 import ARCH
from tests.support.builders.cfi_assembler import block, offset, op, sleb
from tests.support.builders.small_library import (
    CODE_VADDR,
    FUNCTION,
    STOPPING,
    WITH_FRAME_POINTER,
    WITHOUT_FRAME_POINTER,
    filled,
)
from tests.support.stack_capture import CapturedStack, FileModules, assert_same_traces, sample_batch

LOAD = 0x7F00_0000_0000
STACK = 0x7FFC_0000_1000
RBX, RBP, RSP, R10, R12, RIP = 3, 6, 7, 10, 12, 16
ROOT = [op(0x07, RIP)]
SPACE = AddressSpace(
    [
        Mapping(LOAD, LOAD + 0x10000, "r-xp", 0, "/lib.so"),
        Mapping(STACK - 0x1000, STACK + 0x10000, "rw-p", 0, "[stack]"),
    ]
)


def code(function: int, at: int = 5) -> int:
    """An address in the n-th function: by default right behind its first call."""
    return LOAD + CODE_VADDR + function * FUNCTION + at


def stack_of(words: Sequence[int], pc: int, **registers: int) -> CapturedStack:
    values = [0] * len(ARCH.registers)
    for name, value in registers.items():
        values[ARCH.slot(name)] = value
    values[ARCH.pc] = pc
    values[ARCH.sp] = registers.get("rsp", STACK)
    return CapturedStack(tuple(values), STACK, b"".join(struct.pack("<Q", w & 2**64 - 1) for w in words))


def unwind(
    programs: Sequence[Sequence[bytes] | None], *stacks: CapturedStack, instructions: bytes = STOPPING
) -> TraceBatch:
    modules = FileModules({"/lib.so": filled(programs, code=instructions)})
    samples = sample_batch(stacks)
    assert_same_traces(samples, [SPACE], modules)
    return unwind_batch(samples, [SPACE], modules)


def result(traces: TraceBatch) -> tuple[list[int], TraceEnd]:
    return traces.address.tolist(), TraceEnd(traces.end[0])


def test_plain_frames_down_to_an_undefined_return_address() -> None:
    stack = stack_of([code(1), 7, 7, code(2)], code(0))  # function 1: CFA = rsp+24
    traces = unwind([[], [op(0x0E, 24)], ROOT], stack)
    assert result(traces) == ([code(0), code(1), code(2)], TraceEnd.ROOT)
    assert traces.sp.tolist() == [STACK, STACK + 8, STACK + 32]
    assert traces.is_return.tolist() == [False, True, True]
    assert traces.method.tolist() == [Method.REGISTERS, Method.EH_FRAME, Method.EH_FRAME]


def test_ends() -> None:
    assert result(unwind([[], ROOT], stack_of([code(1)], code(0)))) == ([code(0), code(1)], TraceEnd.ROOT)
    assert result(unwind([[]], stack_of([0], code(0)))) == ([code(0)], TraceEnd.ROOT)
    assert result(unwind([[]], stack_of([], code(0)))) == ([code(0)], TraceEnd.STACK_TRUNCATED)
    assert result(unwind([[]], stack_of([0x1234], code(0)))) == ([code(0), 0x1234], TraceEnd.NO_MAPPING)
    assert result(unwind([[]], stack_of([STACK], code(0)))) == ([code(0), STACK], TraceEnd.NO_MAPPING)
    assert result(unwind([[]], stack_of([2**63], code(0)))) == ([code(0), 2**63], TraceEnd.NO_MAPPING)
    assert result(unwind([[b"\x3c"]], stack_of([0], code(0)))) == ([code(0)], TraceEnd.UNSUPPORTED_RULE)
    assert result(unwind([[]], stack_of([], 0))) == ([0], TraceEnd.NO_MAPPING)


def test_a_descending_stack_pointer_is_not_progress() -> None:
    program = [op(0x13, sleb(2)), op(0x11, RIP, sleb(-3))]  # CFA = rsp-16, return address at CFA+24
    assert result(unwind([program], stack_of([7, code(0), 7], code(0)))) == ([code(0)], TraceEnd.NO_PROGRESS)


def test_endless_frames_are_cut() -> None:
    modules = FileModules({"/lib.so": filled([[]])})
    samples = sample_batch([stack_of([code(0)] * 50, code(0))])
    traces = unwind_batch(samples, [SPACE], modules, max_frames=20)
    assert len(traces.address) == 20 and traces.end[0] == TraceEnd.MAX_FRAMES


@pytest.mark.parametrize("dwarf", [RBX, RBP, R12])
def test_cfa_by_a_callee_saved_register_that_an_inner_frame_saved(dwarf: int) -> None:
    """Function 0 saves it and returns to function 1, whose CFA is based on it."""
    inner = [op(0x0E, 16), offset(dwarf, 2)]
    outer = [op(0x0C, dwarf, 16)]
    stack = stack_of([STACK + 24, code(1), 7, 7, code(2), 7], code(0))
    assert result(unwind([inner, outer, ROOT], stack)) == ([code(0), code(1), code(2)], TraceEnd.ROOT)


def test_cfa_by_a_captured_register() -> None:
    stack = stack_of([7, 7, code(1)], code(0), r10=STACK + 16)
    assert result(unwind([[op(0x0C, R10, 8)], ROOT], stack)) == ([code(0), code(1)], TraceEnd.ROOT)


def test_caller_saved_register_is_unknown_in_the_caller() -> None:
    stack = stack_of([code(1), 7, code(2)], code(0), r10=STACK + 16)
    traces = unwind([[], [op(0x0C, R10, 8)], ROOT], stack)
    assert result(traces) == ([code(0), code(1)], TraceEnd.STACK_TRUNCATED)


def test_slot_below_the_stack_pointer_is_already_popped() -> None:
    """LLVM epilogues: `pop rbx; ret` at the ret, whose row still says rbx at CFA-16, which is rsp-8."""
    inner = [offset(RBX, 2)]
    outer = [op(0x0C, RBX, 8)]
    stack = stack_of([code(1), 7, code(2)], code(0), rbx=STACK + 16)
    assert result(unwind([inner, outer, ROOT], stack)) == ([code(0), code(1), code(2)], TraceEnd.ROOT)


def test_slot_beyond_the_slice_loses_the_register_but_not_the_frame() -> None:
    inner = [op(0x11, RBX, sleb(-40))]  # CFA+320
    stack = stack_of([code(1), code(2), code(3)], code(0), rbx=STACK + 16)
    traces = unwind([inner, [], [op(0x0C, RBX, 8)], ROOT], stack)
    assert result(traces) == ([code(0), code(1), code(2)], TraceEnd.STACK_TRUNCATED)


def test_undefined_register_is_lost() -> None:
    stack = stack_of([code(1), code(2)], code(0), rbx=STACK + 8)
    traces = unwind([[op(0x07, RBX)], [op(0x0C, RBX, 8)], ROOT], stack)
    assert result(traces) == ([code(0), code(1)], TraceEnd.STACK_TRUNCATED)


def test_cfa_expression_with_a_read() -> None:
    """GCC's realigned frames: CFA = *(rbp-8), rbp at *(rbp)."""
    program = [op(0x0F, block(b"\x76\x78\x06")), op(0x10, RBP, block(b"\x76\x00"))]
    words = [STACK + 40, 0, 7, 7, code(1), 7]
    stack = stack_of(words, code(0), rbp=STACK + 8)
    assert result(unwind([program, ROOT], stack)) == ([code(0), code(1)], TraceEnd.ROOT)


def test_plt_expression_takes_the_lock_step() -> None:
    plt = [op(0x0F, block(bytes.fromhex("770880003f1a3b2a332422")))]
    pushed, fresh = stack_of([7, code(1)], code(0, 0x0B)), stack_of([code(1)], code(0, 0x06))
    traces = unwind([plt, ROOT], pushed, fresh)
    assert traces.address.tolist() == [code(0, 0x0B), code(1), code(0, 0x06), code(1)]


def test_call_that_ends_a_function_is_looked_up_in_it() -> None:
    """A noreturn call as the last instruction: the return address is the next function's first byte."""
    stack = stack_of([code(2, 0), 7, 7, code(3)], code(0))
    traces = unwind([[], [op(0x0E, 24)], [b"\x3c"], ROOT], stack)
    assert result(traces) == ([code(0), code(2, 0), code(3)], TraceEnd.ROOT)


def test_at_return_looks_up_one_byte_before() -> None:
    plain = stack_of([code(2)], code(1, 0))
    returned = CapturedStack(plain.registers, plain.stack_address, plain.stack, at_return=True)
    traces = unwind([ROOT, [], ROOT], plain, returned)
    assert np.diff(traces.offsets).tolist() == [2, 1]


def test_unaligned_frame_takes_the_scalar_path() -> None:
    data = b"abc" + struct.pack("<QQ", 7, code(1)) + bytes(5)
    stack = CapturedStack(stack_of([], code(0), rbp=STACK + 3).registers, STACK, data)
    assert result(unwind([[op(0x0C, RBP, 16)], ROOT], stack)) == ([code(0), code(1)], TraceEnd.ROOT)


FRAMES = [7, STACK + 32, code(1, 5), 7, 0, 7]


@pytest.mark.parametrize(
    ("instructions", "rbp", "words", "callers", "end"),
    [
        (WITH_FRAME_POINTER, STACK + 8, FRAMES, [code(1)], TraceEnd.ROOT),
        (WITH_FRAME_POINTER, STACK + 8, [7, STACK + 32, code(0, 8), 7, 0, 0], [code(0, 8)], TraceEnd.ROOT),
        # it would be a caller's: that frame would be left out silently
        (WITHOUT_FRAME_POINTER, STACK + 8, FRAMES, [], TraceEnd.NO_UNWIND_ROW),
        (WITH_FRAME_POINTER, STACK - 16, FRAMES, [], TraceEnd.NO_UNWIND_ROW),  # below sp
        (WITH_FRAME_POINTER, STACK + 4096, FRAMES, [], TraceEnd.NO_UNWIND_ROW),  # outside
        (WITH_FRAME_POINTER, STACK + 9, FRAMES, [], TraceEnd.NO_UNWIND_ROW),  # not a word
        (
            WITH_FRAME_POINTER,
            STACK + 8,
            [7, STACK + 32, STACK],
            [],
            TraceEnd.NO_UNWIND_ROW,
        ),  # leads to no code
    ],
)
def test_frame_pointer_without_a_row(
    instructions: bytes, rbp: int, words: list[int], callers: list[int], end: TraceEnd
) -> None:
    stack = stack_of(words, code(0, 8), rbp=rbp)
    traces = unwind([None, ROOT], stack, instructions=instructions)
    assert result(traces) == ([code(0, 8), *callers], end)
    assert traces.method.tolist()[1:] == [Method.FP] * len(callers)


def test_zero_frame_pointer_in_code_that_stops_is_the_root() -> None:
    assert result(unwind([None], stack_of([7], code(0, 5)))) == ([code(0, 5)], TraceEnd.ROOT)
    with_other = stack_of([7], code(0, 5), rbp=STACK)
    assert result(unwind([None], with_other)) == ([code(0, 5)], TraceEnd.NO_UNWIND_ROW)


def with_known(samples: SampleBatch, *names: str) -> SampleBatch:
    known = np.zeros_like(samples.known)
    for name in names:
        known[:, ARCH.slot(name)] = True
    return replace(samples, known=known)


def test_registers_that_were_not_captured() -> None:
    modules = FileModules({"/lib.so": filled([[op(0x0C, RBP, 16)], ROOT])})
    samples = sample_batch([stack_of([7, code(1)], code(0), rbp=STACK)])
    for names, ends in (
        (("rip", "rsp", "rbp"), TraceEnd.ROOT),
        (("rip", "rsp"), TraceEnd.STACK_TRUNCATED),
        (("rip",), TraceEnd.STACK_TRUNCATED),
        ((), TraceEnd.NO_MAPPING),
    ):
        partly = with_known(samples, *names)
        assert unwind_batch(partly, [SPACE], modules).end[0] == ends
        assert_same_traces(partly, [SPACE], modules)


REGISTER = st.sampled_from([RBX, RBP, RSP, R10, R12, 14])
SMALL = st.integers(-6, 6)
INSTRUCTION = st.one_of(
    st.builds(lambda r, n: op(0x12, r, sleb(n)), REGISTER, SMALL),
    st.builds(lambda n: op(0x13, sleb(n)), SMALL),
    st.builds(lambda r, n: op(0x11, r, sleb(n)), st.one_of(REGISTER, st.just(RIP)), SMALL),
    st.builds(lambda r, n: op(0x15, r, sleb(n)), REGISTER, SMALL),
    st.builds(lambda r: op(0x07, r), st.one_of(REGISTER, st.just(RIP))),
    st.builds(lambda r, s: op(0x09, r, s), REGISTER, REGISTER),
    st.builds(lambda r, n: op(0x16, r, block(b"\x77" + sleb(8 * n))), REGISTER, SMALL),
    st.builds(lambda n: op(0x0F, block(b"\x77" + sleb(8 * n) + b"\x06")), SMALL),
)
PROGRAMS = st.lists(st.one_of(st.none(), st.lists(INSTRUCTION, max_size=4)), min_size=4, max_size=4)
WORD = st.one_of(
    st.builds(code, st.integers(0, 3), st.integers(0, 12)),
    st.builds(lambda n: STACK + n, st.integers(-40, 200)),
    st.sampled_from([0, 1, 2**63, 2**64 - 1]),
)
REGISTERS = st.fixed_dictionaries({name: WORD for name in ("rbx", "rbp", "r10", "r12", "r14")})
STACKS = st.lists(
    st.builds(
        lambda words, pc, registers, sp: stack_of(words, pc, rsp=STACK + sp, **registers),
        st.lists(WORD, max_size=14),
        st.builds(code, st.integers(0, 3), st.integers(0, 12)),
        REGISTERS,
        st.sampled_from([0, 0, 0, 8, 16, -8, 3]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150)
@given(PROGRAMS, STACKS, st.sampled_from([STOPPING, WITH_FRAME_POINTER]))
def test_lockstep_equals_scalar_whatever_the_rules(
    programs: list[list[bytes] | None], stacks: list[CapturedStack], instructions: bytes
) -> None:
    modules = FileModules({"/lib.so": filled(programs, code=instructions)})
    assert_same_traces(sample_batch(stacks), [SPACE], modules, max_frames=24)
