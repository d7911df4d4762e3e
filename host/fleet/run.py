"""The whole way: what has no part yet is worked on, and all that was listed is answered for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.engines import Engine
from memleak_android.host.fleet.processing import Part, Settings
from memleak_android.host.fleet.sources import StoredRecording
from memleak_android.host.profile.fleet_profile import CachedFiles


@dataclass(frozen=True, slots=True)
class Progress:
    """done: recordings that have their part, of all. reused: of them, those that had it before."""

    done: int
    reused: int
    total: int


@dataclass(slots=True)
class Worked:
    """keys: of the parts, in the order of the recordings. passing: parts that are not kept, since another try may help.

    cached: by kind. cache_failures: each once.
    """

    keys: list[str]
    passing: list[Part] = field(default_factory=list)
    cached: dict[str, CachedFiles] = field(default_factory=dict)
    cache_failures: dict[str, None] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        for one in part.cached:
            self.cached[one.kind] = self.cached.get(one.kind, CachedFiles(one.kind)) + one
        self.cache_failures |= dict.fromkeys(part.cache_failures)
        if not part.is_final:
            self.passing.append(part)


def work(
    recordings: Sequence[StoredRecording],
    settings: Settings,
    dataset: Dataset,
    engine: Callable[[], Engine],
    tell: Callable[[Progress], None],
) -> Worked:
    """engine: made when there is work for it. What is done is kept whenever this is interrupted."""
    keys = [settings.key(one) for one in recordings]
    waiting = [one for one, key in zip(recordings, keys, strict=True) if key not in dataset]
    reused = done = len(recordings) - len(waiting)
    worked = Worked([])
    tell(Progress(done, reused, len(recordings)))
    for part in engine().run(waiting, settings) if waiting else ():
        if part.is_final:
            dataset.add(part)
        worked.add(part)
        done += 1
        tell(Progress(done, reused, len(recordings)))
    worked.keys = [key for key in keys if key in dataset]
    return worked
