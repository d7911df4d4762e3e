"""The answer: does the program leak, how fast, and at which places of its code."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.field_types import BYTE, Count, Kind, RawText, Unit
from memleak_android.host.profile.growth import Growth

PLACES = "the stacks that one function and line of the program answers for, added up"
FREED = "bytes that the last snapshot before the end still found, of stacks that hold nothing any more"
PACKAGE = "that the module belongs to, where no line is known; of the first places only"
SPREAD = "places that hold more at the end than at the begin, where no single one grows"


class AnswerState(StrEnum):
    """About the program, not about the measurement (coverage)."""

    LEAKING = "leaking"
    NOT_GROWING = "not_growing"
    HELD_AT_EXIT = "held_at_exit"  # too short to judge growth; it ended and held something
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True)
class Package:
    """Of the package manager that brought a module: dpkg, python (a wheel) or npm."""

    name: RawText
    version: RawText
    manager: str


@dataclass(frozen=True, slots=True)
class Place:
    """A function and line of the program, by its innermost frame that is no allocator's and no library's."""

    function: RawText
    module: RawText
    kind: Kind
    space: Count
    objects: Count
    stacks: Count
    freed: Annotated[int, Meta(ge=0, description=FREED)] = 0
    growth: Growth | None = None  # None = not judged
    file: RawText | None = None
    line: Count | None = None
    package: Annotated[Package, Meta(description=PACKAGE)] | None = None
    unit: Unit = BYTE


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit of the target's memory, and its use at the end of the session, in bytes."""

    name: RawText
    limit: Count
    used: Count


@dataclass(frozen=True, slots=True)
class Answer:
    """growth: of all places of this unit together, with memory of which no place is known; None = not judged."""

    state: AnswerState
    why: str = ""  # of cannot_tell
    growth: Growth | None = None
    growing: Annotated[int, Meta(ge=0, description="places that grow")] = 0
    spread: Annotated[int, Meta(ge=0, description=SPREAD)] = 0
    unit: Unit = BYTE
