"""The compiled engine: step.py's results to the bit, on any registers and stacks; absent or foreign, it is not used."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import AddressSpace, BatchUnwinder, Mapping, SampleBatch, TraceBatch
from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.engine.library import LANE, LINE, library_path, load
from memleak_android.unwind.walk import engine_stepper as stepper
from tests.support.builders.cfi_assembler import block, offset, op
from tests.support.builders.small_library import CODE_VADDR, FUNCTION, WITH_FRAME_POINTER, filled
from tests.support.running_program import blocked
from tests.support.stack_capture import FileModules, assert_same_traces, capture, sample_batch

STACK = 0x7FFF_0000
WORDS = 96
BASE = 0x40_0000
COLUMNS = ("offsets", "address", "sp", "is_return", "method", "end")
PROGRAMS = [
    *[[op(0x0E, size)] for size in (8, 16, 24, 40, 48)],
    [op(0x0E, 32) + offset(3, 2) + offset(6, 3)],
    *[[op(0x0E, 40) + offset(16, 5) + offset(3, 1)]] * 2,  # a slot above the return address
    [op(0x0C, 6, 16) + offset(6, 2)],  # CFA = rbp + 16
    *[[op(0x0C, 3, 24)]] * 2,  # CFA = rbx + 24
    [op(0x0E, 8) + op(0x07, 6)],  # rbp lost
    [op(0x07, 16)],  # the thread's start
    [op(0x0F, block(b"\x77\x08"))],  # an expression: CFA = rsp + 8
    [op(0x16, 6, block(b"\x77\x08"))],  # a rule that is for step.py
    [op(0x0E, 12)],  # a CFA that is not aligned
    None,  # no CFI: by the code
]


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    if load(library_path()) is None:
        pytest.skip(f"no compiled engine for this machine ({library_path().name}; make device builds it)")


def world(code: bytes) -> tuple[AddressSpace, FileModules]:
    space = AddressSpace([Mapping(BASE, BASE + 0x10000, "r-xp", 0, "tiny")])
    return space, FileModules({"tiny": filled(PROGRAMS, code=code)})


def same(found: TraceBatch, expected: TraceBatch) -> bool:
    return all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in COLUMNS)


def random_samples(seed: int, n: int = 40) -> SampleBatch:
    """Stacks of words that are return addresses, stack addresses or rubbish."""
    random = np.random.default_rng(seed)
    pcs = BASE + CODE_VADDR + random.integers(0, FUNCTION * len(PROGRAMS), n * WORDS)
    pointers = STACK + 8 * random.integers(-2, WORDS + 2, n * WORDS)
    rubbish = random.integers(0, 1 << 63, n * WORDS, np.uint64)
    kind = random.choice(4, n * WORDS, p=(0.8, 0.15, 0.04, 0.01))
    words = np.choose(kind, [pcs.astype(np.uint64), pointers.astype(np.uint64), rubbish, np.uint64(0)])
    registers = random.integers(0, 1 << 63, (n, len(ARCH.registers)), np.uint64)
    registers[:, ARCH.pc] = pcs[:n]
    for slot in (ARCH.sp, *ARCH.callee_saved):
        registers[:, slot] = pointers[random.integers(0, len(pointers), n)]
    low = random.random(n) < 0.7
    registers[low, ARCH.sp] = STACK + 8 * random.integers(0, 12, int(low.sum()))
    known = random.random(registers.shape) < 0.97
    return SampleBatch(
        ARCH,
        registers,
        known,
        np.full(n, STACK, np.uint64),
        np.arange(n, dtype=np.int64) * WORDS * 8,
        random.integers(0, WORDS + 1, n) * 8,
        words.view(np.uint8),
        np.zeros(n, np.int32),
        random.random(n) < 0.5,
    )


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([b"\xe8\0\0\0\0\xf4\xf4\xf4", WITH_FRAME_POINTER]))
def test_engine_equals_scalar(seed: int, code: bytes) -> None:
    space, modules = world(code)
    assert_same_traces(random_samples(seed), [space], modules, max_frames=1 + seed % 70)


def test_every_step_kind_occurs() -> None:
    """The samples above do reach what they are to compare."""
    space, modules = world(WITH_FRAME_POINTER)
    samples = random_samples(1, 3000)
    traces = BatchUnwinder([space], modules).unwind(samples)
    assert set(traces.end.tolist()) >= {0, 1, 3, 4} and set(traces.method.tolist()) >= {0, 1, 8}
    assert np.diff(traces.offsets).max() > 8
    assert same(traces, BatchUnwinder([space], modules, engine=None).unwind(samples))


def test_jobs_do_not_change_results() -> None:
    space, modules = world(WITH_FRAME_POINTER)
    samples = random_samples(2, 2000)
    samples = replace(samples, space=(np.arange(2000) % 3 * 40_000).astype(np.int32))
    spaces = [space if i % 40_000 == 0 else AddressSpace([]) for i in range(80_001)]
    expected = BatchUnwinder(spaces, modules, engine=None).unwind(samples)
    for jobs, engine in ((3, None), (8, None), (3, library_path()), (8, library_path())):
        unwinder = BatchUnwinder(spaces, modules, jobs=jobs, engine=engine)
        assert same(unwinder.unwind(samples), expected), (jobs, engine)
        assert same(unwinder.unwind(samples), expected), (jobs, engine)


def test_blocks_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    space, modules = world(WITH_FRAME_POINTER)
    samples = random_samples(3, 4000)
    expected = BatchUnwinder([space], modules, engine=None).unwind(samples)
    monkeypatch.setattr(stepper, "_FRAMES_PER_SAMPLE", 0)
    assert same(BatchUnwinder([space], modules).unwind(samples), expected)


def test_deep_stacks_are_more_than_a_lane_holds() -> None:
    stack, space, modules = _deep()
    samples = sample_batch([stack] * 50)
    found = BatchUnwinder([space], modules, max_frames=5000).unwind(samples)
    assert np.diff(found.offsets).min() > 300
    assert same(found, BatchUnwinder([space], modules, max_frames=5000, engine=None).unwind(samples))


def _deep():  # type: ignore[no-untyped-def]
    program = (
        "import time\ndef f(n): return sorted([1], key=lambda x: f(n - 1)) if n else time.sleep(60)\nf(60)"
    )
    with blocked(["/usr/bin/python3", "-c", program]) as pid:
        return capture(pid)


def test_slices_outside_the_bytes_are_not_the_engines() -> None:
    samples = random_samples(4)
    assert stepper.can_step(samples)
    assert not stepper.can_step(
        replace(samples, stack_length=samples.stack_length + len(samples.stack_bytes))
    )
    assert not stepper.can_step(replace(samples, stack_offset=samples.stack_offset - 8))


def test_an_invalid_engine_is_not_used(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.so"
    rubbish.write_bytes(b"\x7fELF" + bytes(100))
    foreign = Path("/usr/lib/x86_64-linux-gnu/libz.so.1")
    for path in (rubbish, tmp_path / "absent.so", foreign):
        assert load(path) is None
    space, modules = world(WITH_FRAME_POINTER)
    assert len(BatchUnwinder([space], modules, engine=rubbish).unwind(random_samples(5))) == 40


def test_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memleak_android.unwind.engine.library.VERSION", 99)
    load.cache_clear()
    assert load(library_path()) is None
    load.cache_clear()


def test_lines_are_cache_lines() -> None:
    assert LINE.itemsize == 64 and LANE.fields is not None and LANE.fields["missing"][1] == 64
