"""Finds the functions of pair families in a target, and writes the agent's lines for them."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from memleak_android.host.errors import MemleakError, TargetError
from memleak_android.host.pairs.schema import PairFamily, PairRoute, PairRule, PairSets, rule_line
from memleak_android.host.profile.field_types import BYTE
from memleak_android.host.symbols.debug_files import DebugFileSearch, open_elf
from memleak_android.host.tracers.agent.session_options import CodePatcher, PairPlan, ProbedFile, opened_here
from memleak_android.host.tracers.functions.requests import FunctionRequest
from memleak_android.host.tracers.functions.selection import FoundFunction, Selection
from memleak_android.host.tracers.pairs.routes import Patches, Probes, Route, Slots
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION
from memleak_android.unwind.errors import BadElfError

_MATCHES_MAX = 32  # functions that one name or glob may match
_WAY_OUT = "name fewer by a narrower glob"
_PART = {False: "acquires", True: "releases"}


@dataclass(frozen=True, slots=True)
class SetsPlanner:
    """Implements PairPlanner: the pairs of files and shipped sets. symbol_dirs: folders with symbol files."""

    sets: PairSets
    symbol_dirs: tuple[Path, ...] = ()

    @property
    def with_heap(self) -> bool:
        return self.sets.with_heap

    @property
    def digest(self) -> int:
        asked_for = repr((self.sets.families, self.symbol_dirs)).encode()
        return int.from_bytes(sha256(asked_for).digest()[:8], "little")

    def plan(
        self,
        files: Sequence[ProbedFile],
        opened: Callable[[ProbedFile], str] = opened_here,
        by: PairRoute = "probes",
        patcher: CodePatcher | None = None,
    ) -> PairPlan:
        selection = Selection(DebugFileSearch(self.symbol_dirs), _MATCHES_MAX, opened, _WAY_OUT)
        route = _route(selection, files, by, patcher)
        drafts = _Drafts(selection, opened, route, by)
        for number, family in enumerate(self.sets.families, 1):
            drafts.add_family(number, family, files)
        if not drafts.probes and not self.with_heap:
            raise TargetError(
                "; ".join(drafts.problems[:3]) or "--pairs: no function was found", "see docs/use/pairs.md"
            )
        return PairPlan(
            (*drafts.rules, *drafts.probes),
            tuple(drafts.names),
            tuple(drafts.releases),
            (*self.sets.problems, *drafts.problems),
            {family.name: family.unit for family in self.sets.families if family.unit != BYTE},
        )


def _route(
    selection: Selection, files: Sequence[ProbedFile], by: PairRoute, patcher: CodePatcher | None
) -> Route:
    if patcher is not None:
        return Patches(selection, files, patcher)
    return Probes(selection, files) if by == "probes" else Slots(selection, files)


@dataclass(slots=True)
class _Drafts:
    """opened: path by which a file can be read.

    rules, probes: lines for the agent.
    names: (pair, function) by number.
    taken: pair and part of each function found.
    placed: functions that are already traced.
    """

    selection: Selection
    opened: Callable[[ProbedFile], str]
    route: Route
    by: PairRoute
    rules: list[str] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    taken: dict[tuple[str, int], tuple[str, bool]] = field(default_factory=dict)
    placed: set[tuple[str, int]] = field(default_factory=set)

    def add_family(self, number: int, family: PairFamily, files: Sequence[ProbedFile]) -> None:
        refusal = self.route.refusal(family)
        if refusal:
            self._complain(family, refusal)
            return
        named = [
            (rule, function)
            for rule in family.rules
            if rule.is_for(self.by)
            for function in self._find(rule, family, files)
        ]
        self.route.look_at([function for _, function in named])
        found = [(rule, function) for rule, function in named if self._take(family, rule, function)]
        for is_release, word in ((False, "acquire"), (True, "release")):
            if not any(rule.is_release == is_release for rule, _ in found):
                self._complain(family, f"no function to {word} is left, so the pair is skipped")
                self._give_back(family)
                return
        n_traced, most = len(self.names), self.route.functions_max
        if n_traced + len(found) > most:  # some of them could be acquires without their releases
            counts = f"its {len(found)} functions are too many, {n_traced} of {most} are traced"
            self._complain(family, f"{counts}, so the pair is skipped")
            self._give_back(family)
            return
        for rule, function in found:
            self._add(number, family, rule, function)

    def _find(self, rule: PairRule, family: PairFamily, files: Sequence[ProbedFile]) -> list[FoundFunction]:
        found: list[FoundFunction] = []
        for symbol in rule.functions:
            before = len(self.selection.problems)
            of_symbol = [
                function
                for library in rule.libraries
                for request in (FunctionRequest(library, symbol),)
                for named in self._with_paths(request, files)
                for function in self.selection.find(named, files)
            ]
            if not of_symbol and not family.is_optional:
                for sentence in self.selection.problems[before:]:
                    self._complain(family, sentence)
            found += of_symbol
        return found

    def _with_paths(self, request: FunctionRequest, files: Sequence[ProbedFile]) -> list[FunctionRequest]:
        """A request for each file that a pattern or a build-id matches; the selection resolves other requests."""
        kind, colon, wanted = request.library.partition(":")
        if not colon or kind not in ("regex", "build-id"):
            return [request]
        matches = re.compile(wanted).search if kind == "regex" else None
        named = [
            replace(request, library=file.path)
            for file in files
            if (matches(file.path) if matches else wanted == self._build_id(file))
        ]
        return named or [request]

    def _build_id(self, file: ProbedFile) -> str:
        with suppress(OSError, BadElfError, MemleakError):  # a mapped file that is not an ELF file has none
            return open_elf(Path(self.opened(file))).build_id
        return ""

    def _take(self, family: PairFamily, rule: PairRule, function: FoundFunction) -> bool:
        """Whether a function is reachable and free for this part: it cannot acquire and release, or be in two pairs."""
        try:
            self.route.check(rule, function)
        except TargetError as error:
            self._complain(family, str(error))
            return False
        part = (family.name, rule.is_release)
        key = (function.file.agent_path, function.file_offset)
        other = self.taken.setdefault(key, part)
        if other != part:
            self._complain(family, f"{function.name} already {_PART[other[1]]} in pair {other[0]}")
        is_new = other == part and key not in self.placed
        self.placed.add(key)
        doubt = "" if family.is_optional or not is_new else self.route.doubt(function)
        if doubt:
            self._complain(family, doubt)
        return is_new

    def _give_back(self, family: PairFamily) -> None:
        """Frees the functions of a skipped pair for the next one."""
        for key in [key for key, (name, _) in self.taken.items() if name == family.name]:
            del self.taken[key]
            self.placed.discard(key)

    def _add(self, number: int, family: PairFamily, rule: PairRule, function: FoundFunction) -> None:
        function_number = FIRST_PAIR_FUNCTION + len(self.names)
        try:
            self.probes += self.route.lines(function_number, rule, function)
        except TargetError as error:
            self._complain(family, str(error))
            return
        self.rules.append(rule_line(function_number, number, family, rule))
        if rule.is_release:
            self.releases.append(function_number)
        self.names.append((family.name, function.name))

    def _complain(self, family: PairFamily, what: str) -> None:
        sentence = f"pair {family.name}: {what}"
        if sentence not in self.problems:
            self.problems.append(sentence)
