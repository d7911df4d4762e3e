"""The process that is attached to: threads that allocate all the time and note when they made no progress."""

import mmap
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

# struct gap and struct shared of workloads/heartbeats.c
_GAP = np.dtype([("begin_ns", "<u8"), ("end_ns", "<u8"), ("thread", "<u8")])
_GAPS, _HEAD = 1 << 20, 16


@dataclass(frozen=True, slots=True)
class Silence:
    """Of a span of time, in ms. longest_all, sum_all: no thread made progress; longest_one: a thread made none."""

    longest_all: float
    sum_all: float
    longest_one: float


class Heartbeats:
    """folder: of the shared file."""

    def __init__(self, program: Path, folder: Path, threads: int) -> None:
        path = folder / "heartbeats.shared"
        with path.open("wb+") as file:
            os.truncate(file.fileno(), _HEAD + _GAPS * _GAP.itemsize)
            self._shared = mmap.mmap(file.fileno(), 0)
        self._process = subprocess.Popen(
            [program, path, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        path_is_open = self._process.stdout is not None and self._process.stdout.readline() == b"ready\n"
        path.unlink()
        if not path_is_open:
            raise RuntimeError(f"{program} did not start")
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._shared.close()

    def silence(self, begin_ns: int, end_ns: int) -> Silence:
        """Between two moments of CLOCK_MONOTONIC, of gaps of 20 us and more that lie at least in part between them."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the process that was attached to ended: {self._process.returncode}")
        n_gaps = int.from_bytes(self._shared[:8], "little")
        if n_gaps > _GAPS:
            raise RuntimeError(f"more than {_GAPS} gaps: ask for fewer rounds")
        gaps = np.frombuffer(bytes(self._shared[_HEAD : _HEAD + n_gaps * _GAP.itemsize]), _GAP)
        gaps = gaps[(gaps["end_ns"] > begin_ns) & (gaps["begin_ns"] < end_ns)]
        lengths = (gaps["end_ns"] - gaps["begin_ns"]) / 1e6
        is_all = gaps["thread"] == 0
        return Silence(
            float(lengths[is_all].max(initial=0)),
            float(lengths[is_all].sum()),
            float(lengths[~is_all].max(initial=0)),
        )
