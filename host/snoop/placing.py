"""Where the probes of found functions go: one number for each function, its places by process and file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.snoop.entry_places import entry_places
from memleak_android.host.snoop.filters import FILTERS_MAX, ArgumentFilter
from memleak_android.host.snoop.formats import CallFormat, parse_call_format
from memleak_android.host.snoop.return_sites import calls_nothing, find_return_sites
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.host.tracers.functions.selection import FoundFunction
from memleak_android.host.tracers.functions.written_names import is_called
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.placement import SINGLE_STEPPED
from memleak_android.host.wire.calls import FUNCTIONS_MAX, ProbeKind

Returns = Literal["auto", "trampoline", "instructions", "none"]


@dataclass(frozen=True, slots=True)
class SnoopedFunction:
    """number: its place in the plan, what the kernel calls it. name: as it is shown."""

    number: int
    name: str
    format: CallFormat
    filters: tuple[ArgumentFilter, ...]
    has_return: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a probe of a function goes in one process. offset: in the file. cost: of entries, see placement.py."""

    function: int
    kind: ProbeKind
    file: ProbedFile
    offset: int
    cost: str = ""


@dataclass(frozen=True, slots=True)
class SnoopPlan:
    functions: tuple[SnoopedFunction, ...]
    places: tuple[Place, ...]

    @property
    def n_entries(self) -> int:
        """Functions, each counted in every process."""
        return sum(one.kind == ProbeKind.ENTRY for one in self.places)

    @property
    def n_single_stepped(self) -> int:
        """Functions whose first instructions all cost an exception more under a probe."""
        return len({one.function for one in self.places if one.cost == SINGLE_STEPPED})


@dataclass(frozen=True, slots=True)
class _Spots:
    """Where a function is entered and left, as offsets in its file."""

    entry: tuple[int, str]
    exits: tuple[tuple[ProbeKind, int], ...]


class Placing:
    """Gives numbers and places to functions of one or more processes that may have files in common.

    throws: exceptions may pass frames of these processes. problems: returns that are not probed, and why.
    """

    def __init__(
        self,
        formats: Sequence[tuple[str, CallFormat]],
        filters: Sequence[ArgumentFilter],
        returns: Returns,
        throws: bool,
    ) -> None:
        self._formats = formats
        self._filters = filters
        self._returns = ("instructions" if throws else "trampoline") if returns == "auto" else returns
        self._may_be_trampoline = returns != "instructions"
        self._numbers: dict[tuple[str, int], int] = {}
        self._functions: list[SnoopedFunction] = []
        self._spots: dict[tuple[str, int], _Spots] = {}
        self._places: list[Place] = []
        self.problems: list[str] = []

    def add(self, elf: ElfFile, identity: str, functions: Sequence[FoundFunction]) -> None:
        """Functions of one file in one process. identity: the same for the same file in another process.

        Raises TargetError: not code that takes probes, too many functions.
        """
        if elf.machine not in PROBED_ARCHES or not elf.is_64_bit:
            raise TargetError(
                f"{elf.path} is code where the kernel places no uprobes", "use a 64-bit build of it"
            )
        functions = list({one.file_offset: one for one in reversed(functions)}.values())[::-1]
        new = [one for one in functions if (identity, one.file_offset) not in self._spots]
        for one, entry in zip(new, entry_places(elf, new), strict=True):
            self._spots[identity, one.file_offset] = _Spots(entry, tuple(self._exits(elf, one, entry[0])))
        places: list[Place] = []
        for one in functions:
            spots = self._spots[identity, one.file_offset]
            number = self._number(identity, one, bool(spots.exits))
            places.append(Place(number, ProbeKind.ENTRY, one.file, *spots.entry))
            places += [Place(number, kind, one.file, offset) for kind, offset in spots.exits]
        self._places += sorted(places, key=lambda place: place.kind)

    def _exits(self, elf: ElfFile, one: FoundFunction, entry: int) -> list[tuple[ProbeKind, int]]:
        """A return probe stands where the entry's does: the return address is still where the call put it."""
        if self._returns == "none":
            return []
        if self._returns == "trampoline" or (
            self._may_be_trampoline and one.size and calls_nothing(elf, one.file_offset, one.size)
        ):
            return [(ProbeKind.RETURN, entry)]
        sites = find_return_sites(elf, one.file_offset, one.size, one.parts)
        if sites.refusal:
            self.problems.append(
                f"{one.name}: its return is not probed, {sites.refusal}; --returns trampoline probes it all the"
                " same, and an exception that passes it then ends the program"
            )
        return [
            *((ProbeKind.INSTRUCTION, offset) for offset in sites.returns),
            *((ProbeKind.TAIL, offset) for offset in sites.tails),
        ]

    def plan(self) -> SnoopPlan:
        return SnoopPlan(tuple(self._functions), tuple(self._places))

    def _number(self, identity: str, one: FoundFunction, has_return: bool) -> int:
        key = identity, one.file_offset
        if key not in self._numbers:
            if len(self._functions) == FUNCTIONS_MAX:
                raise TargetError(f"more than {FUNCTIONS_MAX} functions", "name fewer")
            self._numbers[key] = len(self._functions)
            self._functions.append(self._snooped(len(self._functions), one, has_return))
        return self._numbers[key]

    def _snooped(self, number: int, one: FoundFunction, has_return: bool) -> SnoopedFunction:
        filters = tuple(f for f in self._filters if f.applies_to(one.name))
        if len(filters) > FILTERS_MAX:
            raise TargetError(f"{one.name} has {len(filters)} filters", f"{FILTERS_MAX} at most")
        return SnoopedFunction(number, one.name, _format(one, self._formats), filters, has_return)


def _format(one: FoundFunction, formats: Sequence[tuple[str, CallFormat]]) -> CallFormat:
    if one.request.arguments:
        return parse_call_format(one.request.arguments)
    return next((made for glob, made in formats if is_called(one.name, glob)), formats[-1][1])
