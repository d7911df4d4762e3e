"""Samples as folded stacks, the input of flame graphs: `comm;outermost;…;innermost count`."""

from __future__ import annotations

from collections import Counter
from typing import TextIO

from memleak_android.host.console import printable
from memleak_android.host.perf_data.sampled_stacks import SampledStacks, unfinished
from memleak_android.host.reports.text.samples import names_of


class SamplesFolded:
    """Counts samples by stack; of several events each gets a root of its own. A stack that is cut says so at its root."""

    def __init__(self, stream: TextIO, *, with_event: bool) -> None:
        self._stream = stream
        self._with_event = with_event
        self._names: list[str] = []  # by location
        self._counts: Counter[tuple[str, bytes]] = Counter()

    def write(self, stacks: SampledStacks) -> None:
        self._names += names_of(stacks.locations[len(self._names) :])
        bounds = stacks.offsets.tolist()
        for i in range(len(stacks)):
            locations = stacks.location[bounds[i] : bounds[i + 1]]
            self._counts[self._root(stacks, i), locations.tobytes()] += 1

    def close(self) -> None:
        totals: Counter[str] = Counter()
        for (root, locations), count in self._counts.items():
            numbers = memoryview(locations).cast("i")
            totals[";".join([root, *(self._names[n] for n in reversed(numbers))])] += count
        for line in sorted(totals):
            self._stream.write(f"{line} {totals[line]}\n")

    def _root(self, stacks: SampledStacks, i: int) -> str:
        names = [stacks.event[i]] if self._with_event else []
        names.append(stacks.comm[i])
        if reason := unfinished(int(stacks.end[i])):
            names.append(f"[{reason}]")
        return ";".join(printable(name).replace(";", ":") for name in names)
