"""Processes the recordings that have no part yet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.engines import Engine
from memleak_android.host.fleet.processing import Part, Settings
from memleak_android.host.fleet.sources import StoredRecording
from memleak_android.host.profile.fleet_profile import CachedFiles


@dataclass(frozen=True, slots=True)
class Progress:
    """done: recordings with a part. reused: those that had it before. total: all."""

    done: int
    reused: int
    total: int


@dataclass(slots=True)
class Worked:
    """keys: of the stored parts, in the order of the recordings.
    passing: parts that are not stored, because another try may succeed.
    cached: by kind.
    cache_failures: each once.
    """

    keys: list[str]
    passing: list[Part] = field(default_factory=list)
    cached: dict[str, CachedFiles] = field(default_factory=dict)
    cache_failures: dict[str, None] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        for files in part.cached:
            self.cached[files.kind] = self.cached.get(files.kind, CachedFiles(files.kind, 0, 0, 0)) + files
        self.cache_failures |= dict.fromkeys(part.cache_failures)
        if not part.is_final:
            self.passing.append(part)


def work(
    recordings: Sequence[StoredRecording],
    settings: Settings,
    dataset: Dataset,
    engine: Callable[[], Engine],
    report: Callable[[Progress], None],
) -> Worked:
    """Processes what is missing. An interruption keeps the finished parts.

    engine: created if there is work.
    """
    keys = [settings.key(recording) for recording in recordings]
    waiting = [recording for recording, key in zip(recordings, keys, strict=True) if key not in dataset]
    reused = done = len(recordings) - len(waiting)
    worked = Worked([])
    report(Progress(done, reused, len(recordings)))
    for part in engine().run(waiting, settings) if waiting else ():
        if part.is_final:
            dataset.add(part)
        worked.add(part)
        done += 1
        report(Progress(done, reused, len(recordings)))
    worked.keys = [key for key in keys if key in dataset]
    return worked
