"""Placement of the probes: a number for each function, and its probes by process and file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memleak_android.host.elf.dynamic import ElfFile, FileIdentity
from memleak_android.host.errors import TargetError
from memleak_android.host.snoop.filters import FILTERS_MAX, ArgumentFilter
from memleak_android.host.snoop.formats import CallFormat, parse_call_format
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.host.tracers.functions.selection import FoundFunction
from memleak_android.host.tracers.functions.written_names import is_called
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.function_extents import FunctionExtents
from memleak_android.host.tracers.probes.placement import SINGLE_STEPPED
from memleak_android.host.tracers.probes.probe_sites import ProbeSite, probes_at
from memleak_android.host.tracers.probes.return_sites import (
    calls_nothing,
    find_return_sites,
    find_sites_with_parts,
)
from memleak_android.host.wire.calls import FUNCTIONS_MAX, ProbeKind

Returns = Literal["auto", "trampoline", "instructions", "none"]
_FIRST_BYTES = 16  # the longest instruction


@dataclass(frozen=True, slots=True)
class SnoopedFunction:
    """number: index in the plan, by which the kernel names it. name: as shown."""

    number: int
    name: str
    format: CallFormat
    filters: tuple[ArgumentFilter, ...]
    has_return: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a function in one process.

    offset: in the file.
    identity: of the file whose offset this is; None: of a copy, as for a device.
    cost: of entries, see placement.py.
    """

    function: int
    kind: ProbeKind
    file: ProbedFile
    offset: int
    cost: str = ""
    identity: FileIdentity | None = None


@dataclass(frozen=True, slots=True)
class SnoopPlan:
    functions: tuple[SnoopedFunction, ...]
    probes: tuple[Probe, ...]

    @property
    def n_entries(self) -> int:
        """Probed functions, counted per process."""
        return sum(probe.kind == ProbeKind.ENTRY for probe in self.probes)

    @property
    def n_single_stepped(self) -> int:
        """Functions whose entry must be single-stepped."""
        return len({probe.function for probe in self.probes if probe.cost == SINGLE_STEPPED})


@dataclass(frozen=True, slots=True)
class _Offsets:
    """Entry and exits of a function, as offsets in its file."""

    entry: tuple[int, str]
    exits: tuple[tuple[ProbeKind, int], ...]


class Placing:
    """Numbers functions and places their probes, in processes that may share files.

    unwinds: exceptions or the end of a thread may leave frames of these processes.
    problems: returns that are not probed, and why.
    """

    def __init__(
        self,
        formats: Sequence[tuple[str, CallFormat]],
        filters: Sequence[ArgumentFilter],
        returns: Returns,
        unwinds: bool,
    ) -> None:
        self._formats = formats
        self._filters = filters
        self._returns = ("instructions" if unwinds else "trampoline") if returns == "auto" else returns
        self._may_be_trampoline = returns != "instructions"
        self._numbers: dict[tuple[FileIdentity | None, int], int] = {}
        self._functions: list[SnoopedFunction] = []
        self._offsets: dict[tuple[FileIdentity | None, int], _Offsets] = {}
        self._probes: list[Probe] = []
        self._extents: dict[str, FunctionExtents] = {}
        self.problems: list[str] = []

    def add(self, elf: ElfFile, functions: Sequence[FoundFunction]) -> None:
        """Adds functions of one file in one process. Raises TargetError for unprobeable code or too many functions."""
        identity = elf.identity
        if elf.machine not in PROBED_ARCHES or not elf.is_64_bit:
            raise TargetError(
                f"{elf.path} is code in which the kernel places no uprobes", "use a 64-bit build of it"
            )
        functions = list({each.file_offset: each for each in reversed(functions)}.values())[::-1]
        new = [each for each in functions if (identity, each.file_offset) not in self._offsets]
        for function, entry in zip(new, entry_offsets(elf, new), strict=True):
            exits = tuple(self._exits(elf, function, entry[0]))
            self._offsets[identity, function.file_offset] = _Offsets(entry, exits)
        probes: list[Probe] = []
        for function in functions:
            offsets = self._offsets[identity, function.file_offset]
            number = self._number(identity, function, bool(offsets.exits))
            known = identity if function.file.agent_path == elf.path else None
            at, cost = offsets.entry
            probes.append(Probe(number, ProbeKind.ENTRY, function.file, at, cost, known))
            probes += [
                Probe(number, kind, function.file, offset, identity=known) for kind, offset in offsets.exits
            ]
        self._probes += sorted(probes, key=lambda probe: probe.kind)

    def _exits(self, elf: ElfFile, one: FoundFunction, entry: int) -> list[tuple[ProbeKind, int]]:
        """Exit probes. A return probe is placed at the entry, where the return address is still in the caller's slot."""
        if self._returns == "none":
            return []
        if self._returns == "trampoline" or (
            self._may_be_trampoline and one.size and calls_nothing(elf, one.file_offset, one.size)
        ):
            return [(ProbeKind.RETURN, entry)]
        sites = find_return_sites(elf, one.file_offset, one.size, one.parts)
        if sites.refusal and one.size:
            extents = self._extents.setdefault(elf.path, FunctionExtents(elf))
            sites = find_sites_with_parts(elf, one.file_offset, one.size, one.parts, extents)
        if sites.refusal:
            self.problems.append(
                f"{one.name}: its return is not probed: {sites.refusal}; --returns trampoline probes it, but an"
                " exception that passes it then ends the program"
            )
        return [
            *((ProbeKind.INSTRUCTION, offset) for offset in sites.returns),
            *((ProbeKind.TAIL, offset) for offset in sites.tails),
        ]

    def plan(self) -> SnoopPlan:
        return SnoopPlan(tuple(self._functions), tuple(self._probes))

    def _number(self, identity: FileIdentity | None, one: FoundFunction, has_return: bool) -> int:
        key = identity, one.file_offset
        if key not in self._numbers:
            if len(self._functions) == FUNCTIONS_MAX:
                raise TargetError(f"more than {FUNCTIONS_MAX} functions", "name fewer")
            self._numbers[key] = len(self._functions)
            self._functions.append(self._snooped(len(self._functions), one, has_return))
        return self._numbers[key]

    def _snooped(self, number: int, one: FoundFunction, has_return: bool) -> SnoopedFunction:
        filters = tuple(f for f in self._filters if is_called(one.name, f.functions))
        if len(filters) > FILTERS_MAX:
            raise TargetError(f"{one.name} has {len(filters)} filters", f"{FILTERS_MAX} at most")
        return SnoopedFunction(number, one.name, _format(one, self._formats), filters, has_return)


def _format(one: FoundFunction, formats: Sequence[tuple[str, CallFormat]]) -> CallFormat:
    if one.request.arguments:
        return parse_call_format(one.request.arguments)
    return next((made for glob, made in formats if is_called(one.name, glob)), formats[-1][1])


def entry_offsets(elf: ElfFile, functions: Sequence[FoundFunction]) -> list[tuple[int, str]]:
    """(file offset, cost) of each function. Only functions with an expensive first instruction are decoded further."""
    arch, sites = PROBED_ARCHES[elf.machine], []
    found: dict[int, tuple[int, str]] = {}
    for function in functions:
        name, offset = function.name, function.file_offset
        first = next(iter(arch.decode(elf.bytes_from(offset, _FIRST_BYTES), 0)), None)
        is_cheap = first is not None and arch.is_cheap(first)
        found[offset] = offset, arch.cheap if is_cheap else SINGLE_STEPPED
        if not is_cheap and function.size and elf.text_segment(offset) is not None:
            sites.append(ProbeSite(name, name, offset, function.size, len(arch.arguments), has_return=True))
    for probe in probes_at(elf, elf.path, sites)[0]:
        found[probe.function_offset] = probe.entry_offset, probe.entry_cost
    return [found[function.file_offset] for function in functions]
