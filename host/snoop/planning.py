"""From requests to a plan, for processes and commands of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

from memleak_android.host.errors import MemleakError, TargetError, UsageError
from memleak_android.host.machine.local.loader import load_order, resolve_command
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.snoop.filters import ArgumentFilter
from memleak_android.host.snoop.formats import UNKNOWN, CallFormat
from memleak_android.host.snoop.placing import Placing, Returns, SnoopPlan
from memleak_android.host.symbols.debug_files import DebugFileSearch
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.host.tracers.functions.requests import FunctionRequest
from memleak_android.host.tracers.functions.selection import FoundFunction, Selection
from memleak_android.host.tracers.functions.written_names import is_called

# Itanium C++ ABI, "Exception Handling", §2.4.3; Rust's library/std/src/panicking.rs.
THROWERS = {"__cxa_throw", "rust_panic"}


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of the command line.

    formats: (glob of names, format), the first that matches counts. returns: how they are probed: "trampoline" is the
    kernel's way, by which an exception that passes a probed function ends the program; "auto" takes it where none can.
    """

    functions: tuple[FunctionRequest, ...]
    formats: tuple[tuple[str, CallFormat], ...] = ()
    filters: tuple[ArgumentFilter, ...] = ()
    returns: Returns = "auto"
    max_matches: int = 256
    symbol_dirs: tuple[Path, ...] = ()


@dataclass(slots=True)
class Planned:
    """problems: what could not be found, one sentence each; the rest is in the plan."""

    plan: SnoopPlan
    problems: list[str] = field(default_factory=list)


def local_files(
    pids: Sequence[int],
    command: Sequence[str],
    environment: Mapping[str, str],
    on_problem: Callable[[str], None] = lambda sentence: None,
) -> list[list[ProbedFile]]:
    """The files of each process, or of the command before it runs. Raises TargetError."""
    if command:
        loaded = load_order(resolve_command(command[0], environment), environment)
        return [[ProbedFile(0, one.path, one.open_path) for one in loaded]]
    return of_each(pids, _files_of, on_problem)


def of_each(
    pids: Sequence[int], look: Callable[[int], list[ProbedFile]], on_problem: Callable[[str], None]
) -> list[list[ProbedFile]]:
    """Returns the result of `look` for each process, and warns about failures. Raises the error if all fail."""
    found: list[list[ProbedFile]] = []
    failures: list[TargetError] = []
    for pid in pids:
        try:
            found.append(look(pid))
        except TargetError as error:
            failures.append(error)
    if failures and not found:
        raise failures[0]
    for failure in failures:
        on_problem(str(failure))
    return found


def _files_of(pid: int) -> list[ProbedFile]:
    return [ProbedFile(pid, one.path, one.open_path) for one in LocalProcess.open(pid).loaded_objects()]


def plan_snoop(
    requests: Requests,
    processes: Sequence[Sequence[ProbedFile]],
    opened: Callable[[ProbedFile], str] = lambda file: file.agent_path,
    throws: Callable[[Sequence[ProbedFile]], bool] | None = None,
) -> Planned:
    """opened: where a file can be read on this machine. throws: whether exceptions may pass frames of a process's files,
    None = their symbols tell.

    Raises TargetError where nothing is left to probe."""
    selection = Selection(DebugFileSearch(requests.symbol_dirs), requests.max_matches, opened)
    may_throw = throws or partial(_throws, selection)
    is_auto = requests.returns == "auto"
    placing = Placing(
        (*requests.formats, ("*", UNKNOWN)),
        requests.filters,
        requests.returns,
        is_auto and any(map(may_throw, processes)),
    )
    for files in processes:
        found = [one for request in requests.functions for one in selection.find(request, files)]
        for file, group in groupby(
            sorted(found, key=lambda one: files.index(one.file)), lambda one: one.file
        ):
            _place(placing, selection, file, list(group), opened)
    plan = placing.plan()
    _check_globs(requests, plan)
    if not plan.probes:
        raise TargetError(
            "; ".join(selection.problems[:3]) or "no function is named", "name one by --function LIB:FUNCTION"
        )
    return Planned(plan, [*selection.problems, *placing.problems])


def _place(
    placing: Placing,
    selection: Selection,
    file: ProbedFile,
    functions: Sequence[FoundFunction],
    opened: Callable[[ProbedFile], str],
) -> None:
    try:
        status = os.stat(opened(file))
        placing.add(selection.elf(file), f"{status.st_dev}:{status.st_ino}", functions)
    except MemleakError as error:
        selection.problems.append(str(error))


def _throws(selection: Selection, files: Sequence[ProbedFile]) -> bool:
    """Whether one of the files can throw. A library that is stripped and has its runtime inside is not recognised."""
    for file in files:
        with suppress(MemleakError):  # what is mapped and no ELF file throws nothing
            elf = selection.elf(file)
            if elf.dynamic_functions(THROWERS) or elf.static_functions(THROWERS):
                return True
    return False


def _check_globs(requests: Requests, plan: SnoopPlan) -> None:
    for glob, _ in requests.formats:
        if plan.functions and not any(is_called(function.name, glob) for function in plan.functions):
            raise UsageError(
                f"--arguments {glob}=… is for no function that was found",
                "write a name as it is shown, or a glob",
            )
    for one in requests.filters:
        if plan.functions and not any(one in function.filters for function in plan.functions):
            raise UsageError(f"--filter {one.functions}:arg{one.argument}… is for no function that was found")
