"""The machine of the processes that `snoop` traces: this one or a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import click

from memleak_android.host.commands.options import DeviceOptions, TargetOptions
from memleak_android.host.commands.target import chosen_machine
from memleak_android.host.console import say
from memleak_android.host.machine.adb.app import find_app, wait_for_process
from memleak_android.host.snoop.agent_lines import SnoopOptions
from memleak_android.host.snoop.local_tracer import process_names, start_local
from memleak_android.host.snoop.placing import SnoopPlan
from memleak_android.host.snoop.planning import local_files
from memleak_android.host.snoop.remote import RemoteSnoop
from memleak_android.host.stacks.modules import FileFinder, LocalFiles
from memleak_android.host.symbols.symbolizer import default_cache_dir
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import ProbedFile


@dataclass(frozen=True, slots=True)
class SnoopTarget:
    """Whose calls are traced, beside a command behind `--`."""

    device: DeviceOptions
    package: str | None
    process: str | None
    user: int
    pids: tuple[int, ...]
    threads: tuple[int, ...]
    follow: bool


@dataclass(frozen=True, slots=True)
class SnoopMachine:
    """This machine or a device. files: of each process, or of a command. opened, throws: see plan_snoop().

    pids: those of the options, or that of --package. names: of processes by id. finder: opens files of stacks.
    """

    pids: tuple[int, ...]
    files: Callable[[Sequence[int], Sequence[str]], list[list[ProbedFile]]]
    opened: Callable[[ProbedFile], str]
    throws: Callable[[Sequence[ProbedFile]], bool] | None
    start: Callable[[SnoopOptions, SnoopPlan], AgentSession]
    names: Callable[[Sequence[int]], Mapping[int, str]]
    finder: FileFinder


def snoop_machine(command: Sequence[str], target: SnoopTarget, closed_later: ExitStack) -> SnoopMachine:
    """Raises UsageError, DeviceError, TargetError."""
    pids = tuple(dict.fromkeys(target.pids))
    pid = pids[0] if pids else None
    machine = chosen_machine(
        command or None, TargetOptions(device=target.device, pid=pid, package=target.package)
    )
    if machine.is_local:
        return SnoopMachine(
            pids,
            lambda pids, command: local_files(pids, command, os.environ, say),
            lambda file: file.agent_path,
            None,
            start_local,
            process_names,
            LocalFiles(is_running=True),
        )
    if command:
        raise click.UsageError("snoop starts no command on a device; start it, and name it by --pid N")
    if target.package:
        app = find_app(machine, target.package, target.user)
        pids = (wait_for_process(machine, app, target.process, 0.0).pid,)
    remote = closed_later.enter_context(closing(RemoteSnoop(machine, default_cache_dir() / "modules")))
    return SnoopMachine(
        pids,
        lambda pids, command: remote.files(pids, say),
        remote.opened,
        remote.throws,
        remote.start,
        lambda pids: remote.names,
        remote.finder,
    )
