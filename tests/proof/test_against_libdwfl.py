"""Stacks of clang and python3, sampled on the spot, against elfutils' libdwfl: address by address.

Equal means: as many frames and every address of them equal, on slices that hold whole stacks and on cut ones. A
difference is printed whole; at most one in 10,000 is borne, or one. Apart from them, and few, are chains that libdwfl ends
where a file has no rules and the code itself says how to go on: in _init, whose page is being read from the disk. Where another tracer's probes stand in the sampled program, both are given stacks
in which the kernel has put its own addresses: then nothing is compared. `python -m bench unwind` takes more samples.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.perf_data.files import RecordedFiles
from memleak_android.host.perf_data.stacks import SampleReader
from memleak_android.unwind import Method, SampleBatch, TraceBatch, TraceEnd
from memleak_android.unwind.walk.batch import BatchUnwinder
from tests.support.oracles import dwfl as dwfl_oracle
from tests.support.perf_recordings import clang, python, record

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

RECORDINGS: dict[str, tuple[Callable[[Path], list[str]], int, int]] = {
    "clang, 16 KB": (lambda folder: clang(folder, 60), 16384, 2000),
    "clang, 64 KB": (lambda folder: clang(folder, 40), 65528, 500),
    "python3, 16 KB": (lambda folder: python(12), 16384, 2000),
    "python3, 64 KB": (lambda folder: python(8), 65528, 500),
}
TRAMPOLINE_PAGE = 0x7FFFFFFFE  # below the end of the address space (kernel/events/uprobes.c, xol_add_vma)
ATTEMPTS = 3
SAMPLES_MIN = 100


class Recorded:
    def __init__(self, path: Path) -> None:
        self.reader = SampleReader(path)
        self.files = RecordedFiles(self.reader.recording, self.reader.processes)
        self.spaces = self.reader.processes.spaces
        self.unwinder = BatchUnwinder(self.spaces, self.files, frame_pointers=False)
        groups = [group for chunk in self.reader.chunks() for group in chunk.groups]
        self.batches = [group.batch for group in groups if group.batch is not None]

    @property
    def is_probed(self) -> bool:
        """Whether uprobes of another tracer were hit: the kernel's page for them is mapped, or on a stack."""
        if any(mapping.path == "[uprobes]" for space in self.spaces for mapping in space.mappings):
            return True
        traces = [self.unwinder.unwind(batch) for batch in self.batches]
        return any(np.any(trace.address >> np.uint64(12) == TRAMPOLINE_PAGE) for trace in traces)


@pytest.fixture(scope="module", params=RECORDINGS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    if reason := dwfl_oracle.missing():
        pytest.skip(reason)
    command, stack_bytes, frequency = RECORDINGS[request.param]
    folder = tmp_path_factory.mktemp("recording")
    for attempt in range(ATTEMPTS):
        try:
            path = folder / f"perf.data.{attempt}"
            one = Recorded(record(path, command(folder), stack_bytes=stack_bytes, frequency=frequency))
        except LookupError as error:
            pytest.skip(str(error))
        if sum(map(len, one.batches)) > SAMPLES_MIN and not one.is_probed:
            return one
    pytest.skip(
        "another tracer's probes stand in the sampled program, or a busy machine loses samples: alone it runs"
    )


def compare(recorded: Recorded, batch: SampleBatch, folder: Path) -> np.ndarray:
    """Asserts equality; returns how the traces end."""
    traces = recorded.unwinder.unwind(batch)
    ours = dwfl_oracle.chains_of(traces)
    program, path = dwfl_oracle.build(folder), recorded.reader.recording.path
    theirs = dwfl_oracle.unwind_by_dwfl(program, folder, [batch], recorded.spaces, recorded.files, path)
    different = dwfl_oracle.differences(ours, theirs)
    for i in different[:20]:
        chains = (list(map(hex, chains.of(i))) for chains in (ours, theirs))
        print(i, TraceEnd(traces.end[i]).name, *chains, sep="\n  ")
    without_rules = [i for i in different if _ends_without_rules(traces, ours, theirs, i)]
    assert len(without_rules) <= max(1, len(batch) // 1000), (
        f"{len(without_rules)} of {len(batch)} by code only"
    )
    wrong = len(different) - len(without_rules)
    assert wrong <= max(1, len(batch) // 10_000), f"{wrong} of {len(batch)} chains differ"
    return traces.end


def _ends_without_rules(
    traces: TraceBatch, ours: dwfl_oracle.Chains, theirs: dwfl_oracle.Chains, i: int
) -> bool:
    """Whether theirs is the beginning of ours and our next frame came by nothing but the code."""
    mine, other = ours.of(i), theirs.of(i)
    following = int(traces.offsets[i]) + len(other)
    return other == mine[: len(other)] != mine and bool(traces.method[following] == Method.PROLOGUE)


def test_chains_are_those_of_libdwfl(recorded: Recorded, tmp_path: Path) -> None:
    for batch in recorded.batches:
        compare(recorded, batch, tmp_path)


def test_cut_slices_end_where_they_are_cut(recorded: Recorded, tmp_path: Path) -> None:
    """Nothing is made up behind the last readable word: every chain begins as that of the whole slice does."""
    (batch,) = recorded.batches[:1]
    cut = replace(batch, stack_length=np.minimum(batch.stack_length, 2048))
    ends = compare(recorded, cut, tmp_path)
    whole, short = recorded.unwinder.unwind(batch), recorded.unwinder.unwind(cut)
    first, length = whole.offsets[:-1], np.diff(short.offsets)
    owner = np.repeat(np.arange(len(length)), length)
    level = np.arange(len(owner)) - np.repeat(short.offsets[:-1], length)
    assert np.all(length <= np.diff(whole.offsets))
    assert np.array_equal(short.address, whole.address[first[owner] + level])
    assert np.count_nonzero(ends == TraceEnd.STACK_TRUNCATED) > len(batch) // 2
