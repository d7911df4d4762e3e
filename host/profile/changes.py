"""The changes between two profiles: of a site, of a place, of the whole."""

from dataclasses import dataclass
from enum import StrEnum
from math import hypot

from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.field_types import BYTE, Unit
from memleak_android.host.profile.frame import Frame

# Standard errors that a difference of estimates must exceed. Many sites are compared at once: with normal errors, 3 lets
# through one in 370 that did not change.
CONFIDENCE = 3.0


class Change(StrEnum):
    """The change of a site's outstanding memory."""

    NEW = "new"
    GROWN = "grown"
    SHRUNK = "shrunk"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Held:
    """Outstanding bytes and blocks."""

    space: int
    objects: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Growth, or a difference of growth. margin: half of its 95 % interval."""

    bytes_per_s: float = 0.0
    margin: float = 0.0

    @property
    def is_significant(self) -> bool:
        return abs(self.bytes_per_s) > self.margin


class _Change:
    """Differences of what is held."""

    __slots__ = ()
    old: Held
    new: Held

    @property
    def space(self) -> int:
        return self.new.space - self.old.space

    @property
    def objects(self) -> int:
        return self.new.objects - self.old.objects


@dataclass(frozen=True, slots=True)
class SiteChange(_Change):
    """A site in both profiles. stderr_space: of the difference; None = neither is sampled."""

    id: str
    change: Change
    kind: str
    old: Held
    new: Held
    frames: tuple[Frame, ...]
    stderr_space: int | None = None
    unit: Unit = BYTE


@dataclass(frozen=True, slots=True)
class PlaceChange(_Change):
    """A function in both profiles. place: the largest of the new one's, or of the old one's where it is gone.

    former: its name in the old profile, if another. stderr_space: of the difference; None = neither is sampled.
    growth: how much faster it grows now; None = one of them was not judged.
    """

    change: Change
    place: Place
    old: Held
    new: Held
    stacks: int
    growth: Rate | None = None
    former: str = ""
    stderr_space: int | None = None
    unit: Unit = BYTE


class Outcome(StrEnum):
    """Of a comparison, for the user's memory."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Difference:
    """The answer of a comparison. growth: how much faster the program grows; None = one of both was not judged.

    space: bytes that it holds more, without a runtime's own.
    old_growth, new_growth: of two programs that leak.
    """

    outcome: Outcome
    space: int
    growth: Rate | None
    unit: Unit = BYTE
    old_growth: Rate | None = None
    new_growth: Rate | None = None

    @property
    def is_same_leak(self) -> bool:
        """Both leak, and as fast as far as is known: sums differ by the time that was measured."""
        return self.new_growth is not None and self.outcome is Outcome.SAME


def faster(old: Rate, new: Rate) -> Rate:
    return Rate(new.bytes_per_s - old.bytes_per_s, hypot(old.margin, new.margin))


def change_of(old: object, new: object, difference: float) -> Change:
    """old, new: false where the site is absent."""
    if not old:
        return Change.NEW
    if not new:
        return Change.GONE
    return Change.GROWN if difference > 0 else Change.SHRUNK
