"""How long threads of an attached process were stopped."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memleak_android.host.profile.field_types import Count
from memleak_android.host.profile.profile import ThreadStop


@dataclass(frozen=True, slots=True)
class StopSum:
    """Of at least one stop."""

    stops: Count
    median_ns: Count
    max_ns: Count

    @classmethod
    def of(cls, stops: Sequence[ThreadStop], is_caller: bool) -> StopSum | None:
        found = [stop.duration_ns for stop in stops if stop.is_caller == is_caller]
        return cls(len(found), int(statistics.median(found)), max(found)) if found else None

    def __str__(self) -> str:
        often = "once" if self.stops == 1 else f"{self.stops} times"
        return f"{often}, {self.median_ns / 1e6:.3f} ms in the median, {self.max_ns / 1e6:.3f} ms at most"


def stop_lines(stops: Sequence[ThreadStop]) -> Iterator[str]:
    """A line, if any thread was stopped."""
    together, caller = (StopSum.of(stops, is_caller) for is_caller in (False, True))
    sums = [f"all threads {together}"] if together else []
    sums += [f"the one that made our calls {caller}"] if caller else []
    if sums:
        yield f"stopped        {'; '.join(sums)}"
