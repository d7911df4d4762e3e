"""Routes to a function of a pair: a probe in its file, the slots through which modules call it, or a patch of its code."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar
from urllib.parse import quote

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.slots import called_names, exported_names, names_of_several
from memleak_android.host.errors import MemleakError, TargetError
from memleak_android.host.pairs.schema import Nesting, PairFamily, PairRule
from memleak_android.host.tracers.agent.session_options import (
    CodePatcher,
    PatchSite,
    ProbedFile,
    file_lines,
    probe_lines,
)
from memleak_android.host.tracers.functions.selection import FoundFunction, Selection
from memleak_android.host.tracers.probes.allocator import HEAP_FUNCTIONS
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.function_extents import FunctionExtents
from memleak_android.host.tracers.probes.probe_sites import ProbeSite, probes_at
from memleak_android.host.tracers.probes.return_sites import ReturnSites, calls_nothing, find_exits
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, FUNCTIONS_MAX

_NAME_BYTES_MAX = 119  # ML_PAIR_NAME_BYTES
_NAMES_MAX = 384  # ML_PAIR_NAMES
# The shim replaces these itself (device/preload/hooks/names.c): a slot leads to one entry.
_REGIONS = ("mmap", "mmap64", "munmap", "mremap", "shmat", "shmdt", "sbrk", "brk")
_LOADER = (
    *("dlopen", "android_dlopen_ext", "dlsym", "dlclose", "execve", "execvpe", "fexecve", "execv"),
    *("execvp",),
)
_OF_THE_SHIM = frozenset((*(function.name for function in HEAP_FUNCTIONS), *_REGIONS, *_LOADER))
# No exception or cancelled thread leaves the heap's functions, or those that copy memory.
_NEVER_LEFT = frozenset(
    (*(function.name for function in HEAP_FUNCTIONS), "memcpy", "memmove", "memset", "strlen")
)
_BY_BPF = "use --tracer bpf for it"


@dataclass(slots=True)
class Route:
    """A route. check() and lines() raise TargetError with the function's name if it is not reachable.

    files: of the process.
    functions_max: of all pairs together.
    """

    functions_max: ClassVar[int] = FUNCTIONS_MAX - FIRST_PAIR_FUNCTION
    selection: Selection
    files: Sequence[ProbedFile]

    def look_at(self, found: Sequence[FoundFunction]) -> None:
        """Scans all functions of a pair before each is checked."""

    def check(self, rule: PairRule, function: FoundFunction) -> None:
        raise NotImplementedError

    def refusal(self, family: PairFamily) -> str:
        """A requirement of the whole pair that this route cannot meet; "" = none."""
        if family.nesting is Nesting.OWN_CODE:
            return f"the shim does not see which calls come from a file's own code; {_BY_BPF}"
        return ""

    def doubt(self, function: FoundFunction) -> str:
        """Why calls of a reachable function may be missed; "" = no doubt."""
        return ""

    def lines(self, number: int, rule: PairRule, function: FoundFunction) -> list[str]:
        raise NotImplementedError

    def _checked_elf(self, function: FoundFunction, what: str) -> ElfFile:
        elf = self.selection.elf(function.file)
        if elf.machine not in PROBED_ARCHES or not elf.is_64_bit:
            raise TargetError(f"{elf.path} is code {what}", "use a 64-bit build of it")
        return elf

    def _check_teller(self, rule: PairRule, function: FoundFunction) -> None:
        if rule.size_teller and not self._teller(rule.size_teller):
            raise TargetError(
                f"{function.name}: no loaded file exports a function {rule.size_teller} for its sizes",
                "name one that takes the handle and returns bytes",
            )

    def _teller(self, name: str) -> tuple[ProbedFile, ElfFile, int] | None:
        """File and vaddr of the size function: the first file that exports it, as the linker binds a name."""
        for file in self.files:
            with suppress(MemleakError, OSError):  # a mapped file that is not an ELF file has no exports
                elf = self.selection.elf(file)
                if found := elf.dynamic_functions({name}):
                    return None if found[0].is_indirect else (file, elf, found[0].vaddr)
        return None


@dataclass(slots=True)
class Probes(Route):
    """Uprobes: any function of a file.

    A return probe replaces the return address by the kernel's trampoline, which no unwinder passes: an exception that leaves
    the function would end the program, and a cancelled thread would run no destructors. So returns are probed at the
    instructions that leave a function.
    """

    _of_pair: Sequence[FoundFunction] = ()
    _exits_found: dict[tuple[str, int], ReturnSites] = field(default_factory=dict)
    _extents: dict[str, FunctionExtents] = field(default_factory=dict)
    _unwinds: bool | None = None  # whether the files can; None = not looked at yet

    def check(self, rule: PairRule, function: FoundFunction) -> None:
        self._checked_elf(function, "where the kernel places no uprobes")
        if rule.size_teller:
            raise TargetError(
                f"{function.name}: {rule.size_teller}() would have to be called in the process, which BPF cannot",
                "use --tracer preload or plt, or a size by arguments",
            )
        self._exits(rule, function)

    def refusal(self, family: PairFamily) -> str:
        return ""

    def look_at(self, found: Sequence[FoundFunction]) -> None:
        self._of_pair = found

    def _exits(self, rule: PairRule, function: FoundFunction) -> tuple[int, ...] | None:
        """Offsets of the instructions that leave the function; None: a return probe is harmless, or not needed."""
        if not rule.has_return:
            return None
        found = self._found_exits(rule, function)
        if self._is_seen_to_leave(rule, function, ()):
            return found.returns
        elf = self.selection.elf(function.file)
        is_never_left = not found.refusal and _NEVER_LEFT.issuperset((*found.continued_in, *found.called))
        if (
            is_never_left
            or calls_nothing(elf, function.file_offset, function.size)
            or not self._can_unwind(function, elf)
        ):
            return None
        why = found.refusal or f"it ends in {', '.join(found.continued_in)}"
        raise TargetError(
            f"{function.name}: its return cannot be probed: {why}, and an exception that passes a return probe ends the program",
            "use --tracer preload",
        )

    def _found_exits(self, rule: PairRule, function: FoundFunction) -> ReturnSites:
        elf = self.selection.elf(function.file)
        key = (elf.path, function.file_offset)
        if key not in self._exits_found:
            extents = self._extents.setdefault(elf.path, FunctionExtents(elf))
            self._exits_found[key] = find_exits(
                elf, function.file_offset, function.size, extents, rule.functions
            )
        return self._exits_found[key]

    def _is_seen_to_leave(self, rule: PairRule, function: FoundFunction, passed: tuple[str, ...]) -> bool:
        """Whether all its calls end at known instructions, its own or those of the rule's functions to which it jumps."""
        found = self._found_exits(rule, function)
        return not found.refusal and all(
            name in rule.functions
            and name not in passed
            and (others := [one for one in self._of_pair if one.request.symbol == name])
            and all(self._is_seen_to_leave(rule, one, (*passed, name)) for one in others)
            for name in found.continued_in
        )

    def _can_unwind(self, function: FoundFunction, elf: ElfFile) -> bool:
        """A device's files are not all brought here for this: its programs can, by their runtime."""
        if function.file.agent_path != elf.path:
            return True
        if self._unwinds is None:
            self._unwinds = self.selection.can_unwind(self.files)
        return self._unwinds

    def lines(self, number: int, rule: PairRule, function: FoundFunction) -> list[str]:
        site = ProbeSite(
            function.name,
            function.name,
            function.file_offset,
            function.size,
            rule.n_arguments,
            rule.has_return,
        )
        probes, _ = probes_at(self.selection.elf(function.file), function.file.agent_path, [site])
        files = [line for probe in probes for line in file_lines(probe.path, probe.identity)]
        exits = self._exits(rule, function)
        return [
            *files,
            *(line for probe in probes for line in probe_lines(replace(probe, exits=exits), number)),
        ]


@dataclass(slots=True)
class Slots(Route):
    """The shim: functions that modules call by their exported names."""

    _called: set[str] = field(default_factory=set)
    _n_names: int = 0

    def check(self, rule: PairRule, function: FoundFunction) -> None:
        elf = self._checked_elf(function, "for which the shim has no entries")
        names = exported_names(elf, function.file_offset)
        if not names:
            raise TargetError(f"{function.name} is not exported, and the shim uses slots only", _BY_BPF)
        several = names_of_several(elf, function.file_offset)
        if several:  # a slot has only the name: calls of one version would reach the other
            raise TargetError(f"{several[0]} has several versions, which slots cannot distinguish", _BY_BPF)
        if not self._usable(function):
            raise TargetError(f"{function.name} is replaced by the shim itself", _BY_BPF)
        self._check_teller(rule, function)

    def doubt(self, function: FoundFunction) -> str:
        self._called = self._called or self._all_called()
        if not self._called.isdisjoint(self._usable(function)):
            return ""
        return f"{function.name}: no loaded file calls it through a slot; --tracer bpf also sees calls within its own file"

    def lines(self, number: int, rule: PairRule, function: FoundFunction) -> list[str]:
        names = self._usable(function)
        self._n_names += len(names) + bool(rule.size_teller)
        if self._n_names > _NAMES_MAX:
            raise TargetError(f"{function.name}: the functions have more than {_NAMES_MAX} names", _BY_BPF)
        lines = [f"pair_name {number:x} {quote(os.fsencode(name), safe='')}" for name in names]
        return [f"pair_size {number:x} {rule.size_teller}", *lines] if rule.size_teller else lines

    def _usable(self, function: FoundFunction) -> list[str]:
        """Its names; an allocator's own ones may be aliases of malloc and free."""
        names = exported_names(self.selection.elf(function.file), function.file_offset)
        return [
            name for name in names if name not in _OF_THE_SHIM and len(os.fsencode(name)) <= _NAME_BYTES_MAX
        ]

    def _all_called(self) -> set[str]:
        found: set[str] = set()
        for file in self.files:
            with suppress(MemleakError, OSError):  # a mapped file that is not an ELF file has no calls
                found |= called_names(self.selection.elf(file))
        return found


@dataclass(slots=True)
class Patches(Route):
    """The shim by inline hooks: any function of a running process whose first instructions can be moved."""

    functions_max: ClassVar[int] = 64
    patcher: CodePatcher

    def look_at(self, found: Sequence[FoundFunction]) -> None:
        self.patcher.look_at([self._site(function) for function in found])

    def check(self, rule: PairRule, function: FoundFunction) -> None:
        self.patcher.check(self._site(function))
        self._check_teller(rule, function)

    def lines(self, number: int, rule: PairRule, function: FoundFunction) -> list[str]:
        teller = self._teller(rule.size_teller) if rule.size_teller else None
        return self.patcher.lines(number, self._site(function), teller)

    def _site(self, function: FoundFunction) -> PatchSite:
        return PatchSite(
            function.name,
            function.file,
            self.selection.elf(function.file),
            function.file_offset,
            function.size,
        )
