"""Folded stacks, the input of flame graph tools: `outermost;…;innermost weight`, a line per stack.

Of a Profile, and of the samples of perf.data.
"""

from collections import Counter
from typing import TextIO

from memleak_android.host.console import printable
from memleak_android.host.perf_data.sampled_stacks import SampledStacks, unfinished
from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.export.exported import display_name, heap_sites
from memleak_android.host.reports.text.samples import names_of


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Weights are outstanding bytes, with `--sort count` outstanding blocks. All sites, whatever options.top says."""
    weights: Counter[str] = Counter()
    for site in heap_sites(profile):
        names = (display_name(frame).replace(";", ":") for frame in reversed(site.frames))
        weights[";".join(names)] += site.inuse_space if options.sort != "count" else site.inuse_objects
    stream.writelines(f"{stack} {weight}\n" for stack, weight in sorted(weights.items()))


class SamplesFolded:
    """Counts samples by stack: `comm;outermost;…;innermost count`. A truncated stack is marked at its root.

    with_event: the event is the root, for recordings of several.
    """

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
