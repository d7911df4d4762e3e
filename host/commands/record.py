"""`record`: measures and keeps the recording, for reports made later or on another machine."""

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.conflicts import refuse_conflicts, refuse_limit_by_run
from memleak_android.host.commands.gating import conclude, gate_rules
from memleak_android.host.commands.options import (
    SERIALS,
    CommonOptions,
    ResultOptions,
    StatusOptions,
    TargetOptions,
    TracingOptions,
    flag,
    label_option,
    option,
    takes_options,
)
from memleak_android.host.commands.results import check_new
from memleak_android.host.commands.session_plan import app_request, session_options
from memleak_android.host.commands.target import chosen_machine, measured
from memleak_android.host.commands.values import FILE
from memleak_android.host.console import PROGRAM, Invocation, one_line, say
from memleak_android.host.errors import DeviceError, ExitCode, OutputExistsError, UsageError
from memleak_android.host.fleet.published_copies import open_share
from memleak_android.host.machine.adb.server import READY, list_devices
from memleak_android.host.profile.gate import judge
from memleak_android.host.profile.ownership import read_ownership
from memleak_android.host.session.measure import Measurement, RecordingPlan
from memleak_android.host.session.session import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The recording, or the folder of several."""

    path: Path = option(
        "-o FILE",
        FILE,
        "The recording (*.memleak); for several devices the folder for SERIAL.memleak.",
        required=True,
    )
    all_devices: bool = flag("--all-devices", "On every device that adb can use (or repeat --serial).")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentOptions:
    """Contents of the recording beyond the live table."""

    keep_stacks: bool = flag("--keep-stacks", "Keep stack bytes, for replay. They can hold private data.")
    events: bool = flag("--record-all", "Keep every call in the recording.")
    labels: tuple[tuple[str, str], ...] = label_option()
    cache: str = option(
        "--cache URL",
        None,
        "Store libraries pulled from the device there too, for `fleet report --cache`: a folder, s3://…",
        default="",
    )


@click.command(short_help="Measure and write a recording.")
@takes_options
@click.pass_context
def record(
    context: click.Context,
    /,
    file: FileOptions,
    target: TargetOptions,
    tracing: TracingOptions,
    content: ContentOptions,
    result: ResultOptions,
    status: StatusOptions,
    common: CommonOptions,
) -> int:
    """Measures a process (--pid) or a command (-- CMD) and writes a recording for `report`."""
    invocation: Invocation = context.obj
    serials = every_serial() if file.all_devices else context.meta[SERIALS]
    if file.all_devices or len(serials) > 1:
        return record_on_each(invocation, serials, file.path, force=common.force, quiet=common.quiet)
    check_new(file.path, common.force)
    command = invocation.command
    refuse_limit_by_run(result.fail_on_growth, None)
    refuse_conflicts(command, target, tracing, events_option="--record-all" if content.events else "")
    rules = gate_rules(result, common.force)
    done = measured(
        Measurement(
            options=replace(session_options(command, target, tracing, result.symbols), events=content.events),
            app=app_request(target),
            target=chosen_machine(command, target),
            tracer=tracing.tracer,
            view=View(max_lost=result.max_lost, ownership=read_ownership((), ())),
            schedule=Schedule(tracing.duration),
            symbol_dirs=result.symbols,
            recording=RecordingPlan(
                file.path, content.keep_stacks, keep_events=content.events, force=common.force
            ),
            quiet=common.quiet,
            verbose=common.verbose > 0,
            labels=content.labels,
            share=open_share(content.cache),
        )
    )
    return conclude(judge(done.profile, rules), result, status if command else None)


_STATES: dict[int, str] = {ExitCode.OK: "done", ExitCode.INCOMPLETE: "incomplete", ExitCode.LEAKS: "leaks"}
_RECORDED = frozenset(_STATES)
_OURS = ("--exit-status", "ours")  # a command's own status would be taken for a failure


@dataclass
class _Device:
    """One device's session: its process, and the last line of its output."""

    serial: str
    path: Path
    process: subprocess.Popen[str]
    last_line: str = ""

    @property
    def state(self) -> str:
        code = self.process.poll()
        return "measuring" if code is None else _STATES.get(code, f"failed ({code})")


def every_serial() -> tuple[str, ...]:
    """Of every usable device; prints those left out. Raises DeviceError if none is left."""
    rows = list_devices()
    for row in rows:
        if row.state != READY:
            say(f"device {one_line(row.serial)} is {one_line(row.state)}, left out")
    serials = tuple(row.serial for row in rows if row.state == READY)
    if not serials:
        raise DeviceError("no device that can be used", f"see `{PROGRAM} devices`")
    return serials


def record_on_each(
    invocation: Invocation, serials: Sequence[str], folder: Path, *, force: bool, quiet: bool
) -> int:
    """Writes folder/SERIAL.memleak for each. Returns INCOMPLETE if some are missing, the first exit code if all are.

    Raises UsageError, before anything runs, for an unusable folder or a serial named twice.
    """
    if len(set(serials)) < len(serials):
        raise UsageError("one device is named twice by --serial", "name each once")
    paths = _paths(folder, serials, force)
    words = _without_devices(invocation.words)
    command = ["--", *invocation.command] if invocation.command is not None else []
    with _sessions(words, command, dict(zip(serials, paths, strict=True))) as devices:
        _watch(devices, quiet)
    codes = [device.process.wait() for device in devices]
    done = [device for device, code in zip(devices, codes, strict=True) if code in _RECORDED]
    for device in devices:
        if device not in done:
            say(f"{one_line(device.serial)}: {device.last_line or device.state}")
    say(
        f"{len(done)} of {len(devices)} devices measured, recordings in {folder}; merge them by `{PROGRAM} fleet report {folder}`"
    )
    if not done:
        return codes[0]
    return max(codes) if len(done) == len(devices) else ExitCode.INCOMPLETE


def _paths(folder: Path, serials: Sequence[str], force: bool) -> list[Path]:
    if folder.exists() and not folder.is_dir():
        raise OutputExistsError(folder)
    names = [re.sub(r"[^A-Za-z0-9._-]", "_", serial).lstrip(".") for serial in serials]
    if len(set(names)) < len(names):
        names = [f"{name}-{i}" for i, name in enumerate(names, 1)]
    paths = [folder / f"{name}.memleak" for name in names]
    for path in paths:
        check_new(path, force)
    return paths


def _without_devices(words: Sequence[str]) -> list[str]:
    """The words for one device. Its -s and -o are appended, where the last one counts."""
    kept, following = list[str](), iter(words)
    for word in following:
        if word in ("-s", "--serial"):
            next(following, None)
        elif word != "--all-devices" and not word.startswith("--serial=") and not re.match(r"-s[^-]", word):
            kept.append(word)
    return kept


@contextlib.contextmanager
def _sessions(
    words: Sequence[str], command: Sequence[str], paths: dict[str, Path]
) -> Iterator[list[_Device]]:
    """Ctrl-C reaches the sessions as well; each finishes its recording, which we wait for."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield [
            _Device(serial, path, _start([*words, *_OURS, "-s", serial, "-o", str(path), *command]))
            for serial, path in paths.items()
        ]
    finally:
        signal.signal(signal.SIGINT, before)


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    """Our SIGINT handler is not inherited: exec resets it."""
    return subprocess.Popen(
        # -P: import nothing from the working directory
        [sys.executable, "-P", "-m", "memleak_android.host", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _watch(devices: Sequence[_Device], quiet: bool) -> None:
    """Returns once all have ended. Shows a table on a terminal, elsewhere their lines with serials."""
    console = Console(stderr=True)
    shows_table = console.is_terminal and not quiet
    readers = [threading.Thread(target=_listen, args=(device, quiet or shows_table)) for device in devices]
    for reader in readers:
        reader.start()
    with (
        Live(_table(devices), console=console, transient=True)
        if shows_table
        else contextlib.nullcontext() as live
    ):
        for reader in readers:
            while reader.is_alive():
                reader.join(0.5)
                if live is not None:
                    live.update(_table(devices))


def _listen(device: _Device, is_silent: bool) -> None:
    assert device.process.stderr is not None
    for line in device.process.stderr:
        text = one_line(line.rstrip("\n").removeprefix(f"{PROGRAM}: "))
        if not text:
            continue
        device.last_line = text
        if not is_silent:
            say(f"{one_line(device.serial)}: {text}")
    device.process.wait()


def _table(devices: Sequence[_Device]) -> Table:
    table = Table("DEVICE", "STATE", "", box=None)
    for device in devices:
        table.add_row(Text(one_line(device.serial)), device.state, Text(device.last_line))
    return table
