"""FleetProfile: the result of many recordings. Plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.changes import Change
from memleak_android.host.profile.field_types import ALWAYS, Count
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import Profile

Share = Annotated[float, Meta(ge=0, le=1)]


_WORST_FIRST = (
    AnswerState.LEAKING,
    AnswerState.CANNOT_TELL,
    AnswerState.HELD_AT_EXIT,
    AnswerState.NOT_GROWING,
)


class RecordingState(StrEnum):
    """State of a recording in the result."""

    OK = "ok"
    INCOMPLETE = "incomplete"  # counted; something is missing in it
    DUPLICATE = "duplicate"  # the bytes of one that is counted already
    BROKEN = "broken"  # not counted


@dataclass(frozen=True, slots=True)
class RecordingRow:
    """digest: of the bytes, "" if they could not be read. reason: why it is not OK. clock: why its time is invalid."""

    source: str
    digest: str
    state: RecordingState
    reason: str
    bytes: Count
    taken_at_s: float  # since the epoch, by the clock of the recording machine
    duration_s: float
    package: str
    version: str
    version_code: Count
    model: str
    api_level: Count
    abi: str
    serial: str
    inuse_space: Count
    unattributed_space: Count  # of blocks without a stack: in inuse_space, and in no site
    unattributed_objects: Count
    stacks: Count
    complete: Count
    lost: Annotated[tuple[tuple[str, int], ...], Meta(description="by cause, as in report.json")]
    clock: Annotated[
        str, ALWAYS, Meta(description="why taken_at_s is not a time; empty if it can be one")
    ] = ""
    answer: Annotated[str, Meta(description="state of its answer, as in report.json")] = ""

    @property
    def remark(self) -> str:
        """reason and clock in one line."""
        return "; ".join(filter(None, (self.reason, self.clock)))

    @property
    def is_counted(self) -> bool:
        return self.state in (RecordingState.OK, RecordingState.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class SitePrevalence:
    """A site over all recordings that count; bytes per recording, 0 for recordings without it.

    share: of the recordings. p50, p90, p99: nearest rank. versions: those that show it, oldest first.
    """

    id: str
    kind: str
    end: str  # TraceEnd name
    recordings: Count
    share: Share
    mean_space: float
    mean_objects: float
    p50: Count
    p90: Count
    p99: Count
    versions: tuple[str, ...]
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A site of which one version holds more or less than the version before.

    q: the share of false ones to be expected among the changes that are at least as sure (Benjamini–Hochberg), from the
    Mann–Whitney test of bytes per recording. old, new: mean bytes per recording.
    """

    id: str
    kind: str
    change: Change
    old_version: str
    new_version: str
    old: Annotated[float, Meta(description="mean bytes per recording")]
    new: float
    old_recordings: Count  # that show it
    new_recordings: Count
    old_of: Count  # of how many
    new_of: Count
    q: Annotated[float, Meta(ge=0, le=1, description="Benjamini-Hochberg, of Mann-Whitney")]
    frames: tuple[Frame, ...]

    @property
    def space(self) -> float:
        return self.new - self.old


@dataclass(frozen=True, slots=True)
class OnlyOn:
    """A site that one ABI or API level alone shows. p: how likely that is by chance (hypergeometric)."""

    id: str
    kind: str
    dimension: str  # abi, api_level, model
    value: str
    recordings: Count
    of: Count  # recordings of that value
    mean_space: float  # over them
    p: Share
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class VersionSum:
    """One version's recordings."""

    version: str
    recordings: Count
    mean_space: float
    median_duration_s: float


BUILT = "made in this run, or asked of a server"
REUSED = "there already, once for each recording that needed it"
FETCHED = "of them brought from the store of --cache to a worker"


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Files of one kind that recordings needed in this run, each once a recording.

    built: made, or asked of a server. reused: that were there; of them fetched: by a worker from the store of --cache.
    """

    kind: str  # of build_cache.KINDS
    built: Annotated[int, Meta(ge=0, description=BUILT)]
    reused: Annotated[int, Meta(ge=0, description=REUSED)]
    fetched: Annotated[int, Meta(ge=0, description=FETCHED)]

    def __add__(self, other: CachedFiles) -> CachedFiles:
        return CachedFiles(
            self.kind, self.built + other.built, self.reused + other.reused, self.fetched + other.fetched
        )


@dataclass(frozen=True, slots=True)
class FleetProfile:
    """Sites are sorted by mean bytes per recording, largest first. mean: a recording as they are on average."""

    recordings: tuple[RecordingRow, ...]
    versions: tuple[VersionSum, ...]
    sites: tuple[SitePrevalence, ...]
    changes: tuple[VersionChange, ...]
    only_on: tuple[OnlyOn, ...]
    mean: Profile
    notes: tuple[str, ...]
    cache: Annotated[
        tuple[CachedFiles, ...], ALWAYS, Meta(description="of this run; empty without --cache")
    ] = ()

    @property
    def counted(self) -> int:
        return sum(one.is_counted for one in self.recordings)

    @property
    def answers(self) -> dict[str, int]:
        """Recordings that count by the state of their answer; what is to be looked at first."""
        found = Counter(row.answer for row in self.recordings if row.is_counted)
        return {state: found[state] for state in _WORST_FIRST if found[state]}

    def lost(self) -> dict[str, tuple[int, int]]:
        """By cause: the sum over all recordings that count, and the number of recordings with a loss."""
        sums: dict[str, tuple[int, int]] = {}
        for row in self.recordings:
            for cause, count in row.lost if row.is_counted else ():
                known, recordings = sums.get(cause, (0, 0))
                sums[cause] = known + count, recordings + 1
        return sums
