"""The engine and the scalar unwinder agree on any registers: captured stacks, their pcs and pointers moved about."""

from dataclasses import replace

import numpy as np
import pytest

from memleak_android.unwind import BatchUnwinder, SampleBatch
from memleak_android.unwind.arch import arm64, x86_64
from memleak_android.unwind.cfi.rules import DEX_MARK, RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.engine.library import HAS_DEX_PC, READS_CFA, library_path
from memleak_android.unwind.snapshot.folder import Snapshot
from memleak_android.unwind.trace import Method
from memleak_android.unwind.walk.plan import Planner, StepKind, StepPlan
from memleak_android.unwind.walk.rule_lines import RuleLines
from memleak_android.unwind.walk.step import unwind_sample
from tests.support.builders.cfi_assembler import sleb
from tests.support.corpus import case_folder, expectation, options_of
from tests.support.stack_capture import assert_traces, repeated

SAMPLES = 150


def moved_about(samples: SampleBatch, pcs: list[int], seed: int) -> SampleBatch:
    """Copies with other pcs, stack pointers, link registers, frame pointers; some registers not captured."""
    random = np.random.default_rng(seed)
    arch = samples.arch
    many = repeated(samples, SAMPLES)
    registers, known = many.registers, many.known
    registers[:, arch.pc] = random.choice(np.array(pcs, np.uint64), SAMPLES)
    start, length = int(samples.stack_address[0]), int(samples.stack_length[0])
    for slot in (arch.sp, *arch.callee_saved):
        chosen = random.random(SAMPLES) < 0.5
        word = random.integers(0, length // arch.word_bytes, SAMPLES) * arch.word_bytes
        registers[chosen, slot] = (start + word[chosen]).astype(np.uint64)
    if arch.link is not None:
        chosen = random.random(SAMPLES) < 0.3
        registers[chosen, arch.link] = random.choice(np.array(pcs, np.uint64), int(chosen.sum()))
    known &= random.random(known.shape) < 0.95
    known[:, arch.sp] = True
    kept = random.integers(length // 2, length + 1, SAMPLES) // arch.word_bytes * arch.word_bytes
    return replace(many, stack_length=kept, at_return=random.random(SAMPLES) < 0.3)


@pytest.mark.parametrize("frame_pointers", [True, False])
@pytest.mark.parametrize(
    "name", ["photos_reset_arm64", "straddle_arm64", "jit_map_arm", "offset_arm", "eh_frame_hdr_begin_x86_64"]
)
def test_the_same_frames(name: str, frame_pointers: bool) -> None:
    folder = case_folder(name)
    options = replace(options_of(expectation(folder)), memory_files=("stack.data",))
    if not (folder / "stack.data").exists():
        options = replace(options, memory_files=("stack1.data",))
    snapshot = Snapshot(folder, options)
    frames, _ = snapshot.unwind()
    pcs = [f.pc + 4 * k for f in frames for k in range(-20, 21)] + [0, 1 << 55 | frames[0].pc]
    one = replace(snapshot.sample(), extra_memory=None)
    samples = moved_about(one, [pc & 2**64 - 1 for pc in pcs], seed=len(name))
    if not len(one.stack_bytes):
        pytest.fail("no stack")
    spaces = [snapshot.space]
    planner = Planner(snapshot.arch, spaces, snapshot, frame_pointers=frame_pointers)
    expected = [unwind_sample(samples, i, planner, 1024) for i in range(SAMPLES)]
    for engine in (None, library_path()):
        unwinder = BatchUnwinder(spaces, snapshot, frame_pointers=frame_pointers, engine=engine)
        assert_traces(unwinder.unwind(samples), expected)
    assert sum(len(frames) > 1 for frames, _ in expected) > 10


def test_lines_keep_their_values_when_they_grow() -> None:
    """ART's interpreter among many other rules: its CFA is read from the stack, and it names bytecode."""
    rules = RuleLines(arm64.ARCH)
    cfa = b"\x8d\x10\x06\x23\x08"  # *(x29 + 16) + 8
    dex = RegisterRule(0, RuleKind.VAL_EXPRESSION, 0, DEX_MARK + b"\x86\x00")
    reading = UnwindRow(-1, 0, cfa, (dex,), 30, False, Method.DEBUGDATA)
    number = rules.line_of(StepPlan(StepKind.ROW, reading))
    line, interpreter = rules.lines[number].copy(), rules.interpreters[number].copy()
    assert line["flags"] & READS_CFA and line["flags"] & HAS_DEX_PC
    assert interpreter["cfa_added"] == 8 and interpreter["dex_register"] == 5
    for size in range(16, 16 * 400, 16):
        row = UnwindRow(31, size, b"", (), 30, False, Method.EH_FRAME)
        rules.line_of(StepPlan(StepKind.ROW, row))
    assert rules.lines[number] == line and rules.interpreters[number] == interpreter


def test_a_dex_pc_further_than_any_number() -> None:
    """DW_OP_breg3 of 2**69 behind 'DEX1': no line of the engine can hold it."""
    rule = RegisterRule(0, RuleKind.VAL_EXPRESSION, 0, DEX_MARK + b"\x73" + sleb(-(1 << 69)))
    row = UnwindRow(7, 8, b"", (rule, RegisterRule(16, RuleKind.OFFSET, -8)), 16, False, Method.EH_FRAME)
    rules = RuleLines(x86_64.ARCH)
    line = rules.line_of(StepPlan(StepKind.ROW, row))
    assert rules.lines["kind"][line] == StepKind.SCALAR and not rules.interpreters["dex_offset"].any()
