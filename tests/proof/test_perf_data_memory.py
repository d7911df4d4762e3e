"""A perf.data of any size is unwound in the same memory: its pages are let go of as samples are done."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders import perf_data_writer as perf
from tests.support.builders.sampled_program import ATTRIBUTE, Recorded

pytestmark = pytest.mark.proof

MEASURE = r"""
import re, sys
from pathlib import Path
from memleak_android.host.perf_data import stacks
from memleak_android.host.perf_data.files import RecordedFiles
from memleak_android.unwind import BatchUnwinder, TraceEnd
stacks._STACK_BYTES_MAX = 16 << 20
reader = stacks.SampleReader(Path(sys.argv[1]))
files = RecordedFiles(reader.recording, reader.processes)
unwinder = BatchUnwinder(reader.processes.spaces, files, frame_pointers=False)
traces = (unwinder.unwind(group.batch) for chunk in reader.chunks() for group in chunk.groups)
whole = sum(int((one.end == TraceEnd.ROOT).sum()) for one in traces)
# ru_maxrss would count the process that this one was forked from
print(whole, re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def peak_kib(path: Path, recorded: Recorded, samples: int) -> int:
    records = [*recorded.maps, *(recorded.at(time) for time in range(samples))]
    path.write_bytes(perf.seekable([ATTRIBUTE], records))
    done = subprocess.run([sys.executable, "-c", MEASURE, path], check=True, capture_output=True, text=True)
    count, peak = map(int, done.stdout.split())
    assert count == samples
    path.unlink()
    return peak


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """4,000 and 16,000 whole stacks, 16 MB of them at a time."""
    recorded = Recorded()
    small, large = (peak_kib(tmp_path / "perf.data", recorded, samples) for samples in (4_000, 16_000))
    assert large - small < 24 << 10, (small, large)
