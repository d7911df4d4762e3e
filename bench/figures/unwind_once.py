"""One process that unwinds one recording: `python -m bench.figures.unwind_once RECORDING TABLES|- PASSES`.

Prints JSON: samples, frames, CPU seconds of each pass over all samples. The first is cold: it opens the files and decodes
their rules. TABLES: a folder of decoded rules. Neither parsing nor naming is timed nor reading the
recording's pages; libdwfl and perf are timed without them, too.
"""

import json
import mmap
import sys
import time
from pathlib import Path

import memleak_android.unwind.code.epilogue  # noqa: F401 (capstone, which the unwinder puts off)
from memleak_android.host.perf_data.files import RecordedFiles
from memleak_android.host.perf_data.stacks import SampleReader
from memleak_android.unwind import BatchUnwinder, SampleBatch, TraceBatch
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.engine.library import library_path


class Samples:
    """All samples of a recording as batches, and what they are unwound with."""

    def __init__(self, recording: Path, tables: Path | None) -> None:
        self.reader = SampleReader(recording)
        self.spaces = self.reader.processes.spaces
        cache = TableCache(tables) if tables is not None else None
        self.files = RecordedFiles(self.reader.recording, self.reader.processes, (), cache)
        groups = [group for chunk in self.reader.chunks() for group in chunk.groups]
        self.batches: list[SampleBatch] = [group.batch for group in groups if group.batch is not None]
        for area in self.reader.recording.areas:
            area.words[:: mmap.PAGESIZE // 8].max(initial=0)  # touches every page


def unwind(samples: Samples, passes: int) -> tuple[list[TraceBatch], list[float]]:
    """The traces of each batch, and CPU seconds by pass."""
    unwinder = BatchUnwinder(samples.spaces, samples.files, frame_pointers=False, engine=library_path())
    seconds = []
    for _ in range(passes):
        begin = time.process_time()
        traces = [unwinder.unwind(batch) for batch in samples.batches]
        seconds.append(time.process_time() - begin)
    return traces, seconds


def main(recording: str, tables: str, passes: str) -> None:
    samples = Samples(Path(recording), None if tables == "-" else Path(tables))
    traces, seconds = unwind(samples, int(passes))
    count, frames = sum(map(len, samples.batches)), sum(len(one.address) for one in traces)
    print(json.dumps({"samples": count, "frames": frames, "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
