"""Plans a session of every process of this machine: the files of their allocators."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.binaries import SHIM, find_binary, local_arch
from memleak_android.host.machine.capabilities import bpf_refusal
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.machine import probe_local
from memleak_android.host.machine.local.process import LoadedObject, LocalProcess
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import AllocatorChoice, Probe, SessionOptions
from memleak_android.host.tracers.probes.allocator import (
    check_runs_here,
    exports,
    plan_probes,
    probe_lines,
    unprobed_functions,
)
from memleak_android.unwind.file_reading import file_status

FILES_MAX = 16  # ML_BPF_FILES of device/bpf/session.h
_NAMED_MAX = 5
_Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EveryProcessPlan:
    """files: of allocators, those of most processes first. left_out: sentences about processes without probes."""

    files: tuple[str, ...]
    probes: tuple[Probe, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Allocator:
    """A file with an allocator. path: openable here."""

    path: str
    processes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Search:
    """Reads each file once, by device and inode, for any number of processes."""

    allocators: dict[_Identity, _Allocator] = field(default_factory=dict)
    without: dict[str, list[str]] = field(default_factory=dict)  # reason → names of processes
    unread: dict[str, list[str]] = field(
        default_factory=dict
    )  # why a file is unknown → names of measured processes
    _has_malloc: dict[_Identity, bool | str] = field(default_factory=dict)  # or why that is unknown

    def add(self, pid: int) -> None:
        try:
            process = LocalProcess.open(pid)
        except TargetError as error:
            if "32-bit" in str(error):
                self._leave_out("32-bit code", str(pid))
            return  # a kernel thread, or ended meanwhile
        try:
            found, unread = self._allocator_of(process.loaded_objects())
        except TargetError:
            return
        if found is None and os.path.exists(f"/proc/{pid}"):
            self._leave_out(
                next(iter(unread), "no allocator that exports malloc (static, or one of their own)"),
                process.name,
            )
        if found is None:
            return
        found.processes.append(process.name)
        for why in unread:
            self.unread.setdefault(why, []).append(process.name)

    def _allocator_of(self, objects: Iterable[LoadedObject]) -> tuple[_Allocator | None, list[str]]:
        """The first in search order that defines malloc, as the dynamic linker binds it, and why earlier ones are unknown."""
        unread = list[str]()
        for item in objects:
            if os.path.basename(item.path) == SHIM:  # of another session
                continue
            try:
                status = file_status(item.open_path)
            except OSError as error:
                if item.dynamic:  # the dynamic linker searches it
                    unread.append(f"cannot open {item.path}: {error.strerror}")
                continue
            identity = (status.st_dev, status.st_ino)
            if identity not in self._has_malloc:
                self._has_malloc[identity] = _defines_malloc(item.open_path)
            answer = self._has_malloc[identity]
            if answer is True:
                return self.allocators.setdefault(identity, _Allocator(item.open_path)), unread
            if answer and item.dynamic:
                unread.append(answer)
        return None, unread

    def _leave_out(self, reason: str, name: str) -> None:
        self.without.setdefault(reason, []).append(name)


def plan_every_process(choice: AllocatorChoice) -> EveryProcessPlan:
    """Searches all processes but this one. Raises TargetError if no allocator is found."""
    search = _Search()
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            search.add(int(name))
    ranked = sorted(search.allocators.values(), key=lambda allocator: -len(allocator.processes))
    files, probes, notes = list[str](), list[Probe](), list[str]()
    for allocator in ranked:
        if len(files) == FILES_MAX:
            search.without.setdefault(f"more than {FILES_MAX} files of allocators", []).extend(
                allocator.processes
            )
            continue
        try:
            check_runs_here(allocator.path)
            more, remarks = plan_probes(allocator.path, choice, is_the_only_one=False)
        except TargetError as error:
            search.without.setdefault(error.message, []).extend(allocator.processes)
            continue
        files.append(allocator.path)
        probes += more
        notes += [f"{allocator.path}: {remark}" for remark in remarks]
    if not files:
        raise TargetError(
            "no process of this machine has an allocator that can be probed", "name one by --pid"
        )
    notes += _unread_sentences(search.unread)
    return EveryProcessPlan(
        tuple(files), tuple(probes), tuple(notes), tuple(_left_out_sentences(search.without))
    )


def start(options: SessionOptions) -> AgentSession:
    """Raises TracerError, TargetError."""
    if refusal := bpf_refusal(probe_local()):
        raise TracerError(f"only BPF can trace every process: {refusal}", "run as root")
    plan = plan_every_process(options.allocator)
    lines = [*options.lines(), "whole_machine 1", f"bystander {os.getpid()}", *probe_lines(plan.probes)]
    agent = find_binary("memleakd", local_arch())
    session = AgentSession("bpf", LocalChannel([str(agent), "bpf"]), lines)
    session.notes = plan.notes
    session.answer_functions(None, unprobed_functions(plan.notes))
    session.about = {"allocators": list(plan.files), "probes": [asdict(probe) for probe in plan.probes]}
    session.target = {"left_out": list(plan.left_out)}
    return session


def _defines_malloc(path: str) -> bool | str:
    """A text is the reason why it is unknown."""
    try:
        return exports(path, "malloc")
    except TargetError as error:
        return error.message


def _left_out_sentences(without: dict[str, list[str]]) -> Iterable[str]:
    for reason, names in sorted(without.items()):
        yield f"{_processes(names)} that ran at the beginning cannot be measured, {reason}: {_shown(names)}"


def _unread_sentences(unread: dict[str, list[str]]) -> Iterable[str]:
    for reason, names in sorted(unread.items()):
        yield f"{reason}; calls of {_processes(names)} are missing if it defines malloc: {_shown(names)}"


def _processes(names: list[str]) -> str:
    return f"{len(names)} process{'es' * (len(names) != 1)}"


def _shown(names: list[str]) -> str:
    kinds = Counter(names)
    shown = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in kinds.most_common(_NAMED_MAX))
    return shown + (f" and {len(kinds) - _NAMED_MAX} more" if len(kinds) > _NAMED_MAX else "")
