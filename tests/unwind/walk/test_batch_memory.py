"""Memory does not grow with the number of samples: slices of 16 KB in a file, given piece by piece to one unwinder."""

from __future__ import annotations

import os
import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from memleak_android.unwind import AddressSpace, BatchUnwinder, TraceEnd
from tests.support.running_program import blocked
from tests.support.stack_capture import CapturedStack, FileModules, capture, sample_batch

PROGRAM = "import time\ndef f(n): return sorted([1], key=lambda x: f(n - 1)) if n else time.sleep(60)\nf(2)"
SLICE = 16384
PIECE = 2000
FEW, MANY = 25_000, 100_000
GROWTH_MAX = 1.05


def write_slices(path: Path, stack: bytes, count: int) -> None:
    with path.open("wb", buffering=0) as file:
        for begin in range(0, count, 500):
            file.write(stack * min(500, count - begin))


def unwound(path: Path, stack: CapturedStack, space: AddressSpace, modules: FileModules) -> Counter[int]:
    """How many stacks end how, with how many frames."""
    unwinder, found = BatchUnwinder([space], modules), Counter[int]()
    with path.open("rb") as file:
        while len(data := np.fromfile(file, np.uint8, PIECE * SLICE)):
            piece = [CapturedStack(stack.registers, stack.stack_address, data[i : i + SLICE].tobytes()) for i in range(0, len(data), SLICE)]  # fmt: skip
            traces = unwinder.unwind(sample_batch(piece))
            found.update((traces.end.astype(np.int64) << 32 | np.diff(traces.offsets)).tolist())
    return found


def peak_in_child(
    path: Path, stack: CapturedStack, space: AddressSpace, modules: FileModules, count: int
) -> int:
    """Kilobytes of memory of a process that unwinds the whole file, 0 when it finds anything but whole stacks."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = unwound(path, stack, space, modules)
        is_whole = set(found.values()) == {count} and next(iter(found)) >> 32 == TraceEnd.ROOT
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if is_whole else 0
        os.write(writing, str(peak).encode())
        os._exit(0)
    os.close(writing)
    answer = os.read(reading, 64)
    os.close(reading)
    os.waitpid(pid, 0)
    return int(answer or b"0")


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_memory_is_flat(tmp_path: Path) -> None:
    with blocked(["/usr/bin/python3", "-c", PROGRAM]) as pid:
        captured, space, modules = capture(pid)
    whole = captured.stack + bytes(max(SLICE - len(captured.stack), 0))
    stack = CapturedStack(captured.registers, captured.stack_address, whole[:SLICE])
    peaks = []
    for count in (FEW, MANY):
        path = tmp_path / "slices"
        write_slices(path, stack.stack, count)
        assert path.stat().st_size == count * SLICE
        peaks.append(peak_in_child(path, stack, space, modules, count))
        path.unlink()
    print(f"peak memory: {peaks[0]} KB for {FEW} samples, {peaks[1]} KB for {MANY}")
    assert 0 < peaks[1] <= peaks[0] * GROWTH_MAX
