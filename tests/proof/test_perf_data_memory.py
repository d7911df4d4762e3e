"""A perf.data of any size is unwound in the same memory: its pages are let go of as samples are done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders import perf_data_writer as perf
from tests.support.builders.perf_data_writer import Attribute, sample, stack_part

pytestmark = pytest.mark.proof

MEASURE = r"""
import re, sys
from pathlib import Path
from memleak_android.host.perf_data import stacks
from memleak_android.host.perf_data.files import RecordedFiles
stacks._STACK_BYTES_MAX = 16 << 20
reader = stacks.SampleReader(Path(sys.argv[1]))
files = RecordedFiles(reader.recording, reader.processes)
unwinder = stacks.SampleUnwinder(reader.processes.spaces, files)
done = sum(len(unwinder.unwind(group.batch)) for chunk in reader.chunks() for group in chunk.groups)
# ru_maxrss would count the process that this one was forked from
print(done, re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def peak_kib(path: Path, samples: int) -> int:
    registers = [0x7FFF_0000] * perf.X86_64_MASK.bit_count()
    one = [sample(7, time, stack_part(registers, bytes(16384))) for time in range(samples)]
    path.write_bytes(perf.seekable([Attribute(perf.SIMPLE)], one))
    done = subprocess.run([sys.executable, "-c", MEASURE, path], check=True, capture_output=True, text=True)
    count, peak = map(int, done.stdout.split())
    assert count == samples
    path.unlink()
    return peak


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """64 MB and 256 MB of slices, 16 MB at a time."""
    small, large = (peak_kib(tmp_path / "perf.data", samples) for samples in (4_000, 16_000))
    assert large - small < 24 << 10, (small, large)
