"""The machine of the command line's target: this one or a device; and why a command could not be started there."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from shutil import which

import click

from memleak_android.host.commands.options import (
    DeviceOptions,
    TargetOptions,
    flag,
    option,
    package_option,
    process_option,
    user_option,
)
from memleak_android.host.commands.values import PID, TID
from memleak_android.host.console import aligned, one_line, say
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.adb.app import find_app, wait_for_process
from memleak_android.host.machine.adb.device import AdbDevice
from memleak_android.host.machine.adb.server import DeviceRow, SeveralDevices, Wish, list_devices, select
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.target import Target
from memleak_android.host.session.measure import Measured, Measurement, measure
from memleak_android.host.snoop.agent_lines import SnoopOptions
from memleak_android.host.snoop.placing import SnoopPlan
from memleak_android.host.snoop.planning import local_files
from memleak_android.host.snoop.remote import RemoteSnoop, process_names, start_local
from memleak_android.host.stacks.modules import FileFinder, LocalFiles
from memleak_android.host.symbols.symbolizer import default_cache_dir
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.unwind.file_reading import opened

SERIAL_VARIABLE = "ANDROID_SERIAL"
_FAILED = ("could not start ", "cannot run ")  # how the errors of agent and loader begin
HEADINGS = ("SERIAL", "STATE", "KIND", "MODEL", "PRODUCT")


def chosen_machine(
    command: Sequence[str] | None, target: TargetOptions, *, needs_process: bool = True
) -> Target:
    """This machine, or a device: where an option or --package means one, or ANDROID_SERIAL is set.

    ANDROID_SERIAL counts for --pid, for the kernel, and where no process is needed. Raises UsageError, DeviceError.
    """
    device = target.device
    if bool(device.serial) + device.usb + device.tcp > 1:
        raise click.UsageError("more than one of -s, -d and -e; name the device by one")
    wish = Wish(device.serial or "", device.usb, device.tcp)
    is_named = target.pid or target.kernel or target.percpu
    is_meant = command is None and (is_named or not needs_process)
    preset = os.environ.get(SERIAL_VARIABLE, "")
    if wish == Wish() and not target.package and not (preset and is_meant):
        return LocalMachine()
    return AdbDevice(_chosen_row(Wish(preset) if wish == Wish() else wish))


def _chosen_row(wish: Wish) -> DeviceRow:
    """Prints the candidates where several match, before it raises DeviceError."""
    try:
        return select(list_devices(), wish)
    except SeveralDevices as error:
        for line in table(error.rows):
            say(line)
        raise


def table(rows: Sequence[DeviceRow]) -> list[str]:
    """Aligned lines, the headings first."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    return aligned(cells, range(len(HEADINGS)))


def _cells(row: DeviceRow) -> tuple[str, ...]:
    kind = row.bus or ("usb" if row.is_usb else "tcp")
    return tuple(one_line(cell) for cell in (row.serial, row.state, kind, row.model, row.product))


@dataclass(frozen=True, slots=True, kw_only=True)
class SnoopTarget:
    """The processes that snoop traces, beside a command behind `--`."""

    device: DeviceOptions
    package: str | None = package_option()
    process: str | None = process_option()
    user: int = user_option()
    pids: tuple[int, ...] = option("--pid N", PID, "A process (repeatable).", multiple=True)
    threads: tuple[int, ...] = option("--tid N", TID, "Only this thread (repeatable).", multiple=True)
    follow: bool = flag("--follow", "Its child processes too.")


@dataclass(frozen=True, slots=True)
class SnoopMachine:
    """This machine or a device, as snoop uses it.

    pids: of the options, or of --package.
    files: of each process, or of a command.
    opened, can_unwind: see plan_snoop().
    names: of processes by id.
    finder: opens the files of stacks.
    """

    pids: tuple[int, ...]
    files: Callable[[Sequence[int], Sequence[str]], list[list[ProbedFile]]]
    opened: Callable[[ProbedFile], str]
    can_unwind: Callable[[Sequence[ProbedFile]], bool] | None
    start: Callable[[SnoopOptions, SnoopPlan], AgentSession]
    names: Callable[[Sequence[int]], Mapping[int, str]]
    finder: FileFinder


def snoop_machine(command: Sequence[str], target: SnoopTarget, closed_later: ExitStack) -> SnoopMachine:
    """The machine of snoop's targets. Raises UsageError, DeviceError, TargetError."""
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
        raise click.UsageError("snoop cannot start a command on a device; start it there and use --pid N")
    if target.package:
        app = find_app(machine, target.package, target.user)
        pids = (wait_for_process(machine, app, target.process, 0.0).pid,)
    remote = closed_later.enter_context(closing(RemoteSnoop(machine, default_cache_dir() / "modules")))
    return SnoopMachine(
        pids,
        lambda pids, command: remote.files(pids, say),
        remote.opened,
        lambda files: True,  # they are not all brought here to look
        remote.start,
        lambda pids: remote.names,
        remote.finder,
    )


def measured(measurement: Measurement) -> Measured:
    """measure(), with the reason why a command could not be started."""
    with explained(measurement.options.command if measurement.target.is_local else ()):
        return measure(measurement)


@contextmanager
def explained(command: Sequence[str]) -> Iterator[None]:
    """Inside, a TargetError for a command of this machine that could not be started gets its reason."""
    try:
        yield
    except TargetError as error:
        if command and error.message.startswith(_FAILED) and (reason := _reason(command)):
            raise TargetError(*reason) from None
        raise


def _reason(command: Sequence[str]) -> tuple[str, str] | None:
    """The message and the hint. Only after a failure: binfmt_misc runs files of any format."""
    name, line = command[0], shlex.join(command)
    found = which(name)
    path = found or name
    is_file, head = os.path.isfile(path), _head(path)
    interpreter = re.split(r"[ \t]", head[2:].split("\n")[0].strip(" \t"))[0] if head[:2] == "#!" else ""
    rules = (
        (os.path.isdir(path), f"{name} is a folder", "name the program in it"),
        (
            " " in name.strip() and len(command) == 1 and not is_file,
            f"{name!r} is one word with a space",
            f"write -- {name} without the quotes, or -- sh -c {line}",
        ),
        (
            is_file and not os.access(path, os.X_OK),
            f"{name} is not executable",
            f"chmod +x {shlex.quote(name)}",
        ),
        (is_file and not found, f"{name} is here and not on PATH", f"write -- ./{line}"),
        (
            head and not head.startswith(("\x7fELF", "#!")),
            f"{name} has no #! line",
            f"write -- sh {line}",
        ),
        (
            interpreter and not which(interpreter),
            f"the first line of {name} names {interpreter!r}, which cannot be run",
            f"correct it, or write -- sh {line}",
        ),
    )
    return next(((message, hint) for applies, message, hint in rules if applies), None)


def _head(path: str) -> str:
    """The beginning of a regular file; "" if it cannot be read."""
    try:
        with opened(path) as file:
            return os.fsdecode(file.read(256))  # BINPRM_BUF_SIZE
    except OSError:
        return ""
