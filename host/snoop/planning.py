"""From requests to a plan, for processes and commands of this machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from memleak_android.host.errors import MemleakError, TargetError, UsageError
from memleak_android.host.machine.local.loader import command_objects
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.snoop.filters import ArgumentFilter
from memleak_android.host.snoop.formats import UNKNOWN, CallFormat
from memleak_android.host.snoop.placing import Placing, Returns, SnoopPlan
from memleak_android.host.symbols.debug_files import DebugFileSearch
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.host.tracers.functions.requests import FunctionRequest
from memleak_android.host.tracers.functions.selection import FoundFunction, Selection
from memleak_android.host.tracers.functions.written_names import is_called


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


def local_files(
    pids: Sequence[int],
    command: Sequence[str],
    environment: Mapping[str, str],
    on_problem: Callable[[str], None] = lambda sentence: None,
) -> list[list[ProbedFile]]:
    """The files of each process, or of the command before it runs. Raises TargetError."""
    if command:
        loaded = command_objects(command, environment)
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
    can_unwind: Callable[[Sequence[ProbedFile]], bool] | None = None,
) -> tuple[SnoopPlan, list[str]]:
    """The plan, and one sentence for each problem.

    opened: where a file can be read on this machine. can_unwind: whether exceptions or the end of a thread may leave frames of a
    process's files; None = their symbols tell.

    Raises TargetError where nothing is left to probe."""
    selection = Selection(DebugFileSearch(requests.symbol_dirs), requests.max_matches, opened)
    is_auto = requests.returns == "auto"
    placing = Placing(
        (*requests.formats, ("*", UNKNOWN)),
        requests.filters,
        requests.returns,
        is_auto and any(map(can_unwind or selection.can_unwind, processes)),
    )
    for files in processes:
        found = [one for request in requests.functions for one in selection.find(request, files)]
        for file, group in groupby(
            sorted(found, key=lambda one: files.index(one.file)), lambda one: one.file
        ):
            _place(placing, selection, file, list(group))
    plan = placing.plan()
    _check_globs(requests, plan)
    if not plan.probes:
        raise TargetError(
            "; ".join(selection.problems[:3]) or "no function is named", "name one by --function LIB:FUNCTION"
        )
    return plan, [*selection.problems, *placing.problems]


def _place(
    placing: Placing, selection: Selection, file: ProbedFile, functions: Sequence[FoundFunction]
) -> None:
    try:
        placing.add(selection.elf(file), functions)
    except MemleakError as error:
        selection.problems.append(str(error))


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
