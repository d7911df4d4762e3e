"""Where snoop's processes are: on this machine, or on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import click

from memleak_android.host.commands.target import chosen_target
from memleak_android.host.console import Invocation, say
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
class SnoopMachine:
    """files: of each process, or of a command. opened, throws: see plan_snoop(). names: of the processes by id.

    finder: where files of stacks come from."""

    files: Callable[[Sequence[int], Sequence[str]], list[list[ProbedFile]]]
    opened: Callable[[ProbedFile], str]
    throws: Callable[[Sequence[ProbedFile]], bool] | None
    start: Callable[[SnoopOptions, SnoopPlan], AgentSession]
    names: Callable[[], Mapping[int, str]]
    finder: FileFinder


def chosen_machine(invocation: Invocation, given: dict[str, Any], closed_later: ExitStack) -> SnoopMachine:
    """given["pids"] becomes what --package means. Raises UsageError, DeviceError, TargetError."""
    given["pids"] = tuple(dict.fromkeys(given["pids"]))
    target = chosen_target(invocation, given | {"pid": bool(given["pids"]) or None})
    if target.is_local:
        return SnoopMachine(
            lambda pids, command: local_files(pids, command, os.environ, say),
            lambda file: file.agent_path,
            None,
            start_local,
            lambda: process_names(given["pids"]),
            LocalFiles(is_running=True),
        )
    if invocation.command:
        raise click.UsageError("snoop starts no command on a device; start it, and name it by --pid N")
    if given["package"]:
        app = find_app(target, given["package"], given["user"])
        given["pids"] = (wait_for_process(target, app, given["process"], 0.0).pid,)
    remote = closed_later.enter_context(closing(RemoteSnoop(target, default_cache_dir() / "modules")))
    return SnoopMachine(
        lambda pids, command: remote.files(pids, say),
        remote.opened,
        remote.throws,
        remote.start,
        lambda: remote.names,
        remote.finder,
    )
