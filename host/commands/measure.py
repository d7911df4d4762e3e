"""A measurement: tracer → session → analysis, with everything that must be put away afterwards."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memleak_android.host import payloads
from memleak_android.host.analysis import View, make_profile, target_pid
from memleak_android.host.capture import Capture
from memleak_android.host.commands import PROGRAM, say
from memleak_android.host.commands.events import print_events
from memleak_android.host.commands.progress import Progress
from memleak_android.host.commands.session import Schedule, Session
from memleak_android.host.device.local_machine import LocalMachine
from memleak_android.host.device.target import Target
from memleak_android.host.errors import UsageError
from memleak_android.host.exec_images import unprobed_program
from memleak_android.host.finished import STACK_KINDS, finished_blocks
from memleak_android.host.modules import LocalFiles, ModuleFiles, own_vdso
from memleak_android.host.profile import Profile
from memleak_android.host.recording import Recording, RecordingWriter, write_finished
from memleak_android.host.spool import open_spool
from memleak_android.host.survivors import Analysis
from memleak_android.host.symbols import Symbolizer, default_cache_dir
from memleak_android.host.tracers.agent import AgentSession
from memleak_android.host.tracers.base import SessionOptions
from memleak_android.host.tracers.choice import TracerName, start_tracer
from memleak_android.host.tracers.device import AppRequest, DeviceTracers
from memleak_android.host.wire import BlockKind, Reason
from memleak_android.unwind.table_cache import TableCache


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is to be measured, where, and kept. recording: where the finished recording goes, None = nowhere."""

    options: SessionOptions
    tracer: TracerName
    view: View
    schedule: Schedule
    target: Target = field(default_factory=LocalMachine)
    app: AppRequest | None = None
    symbol_dirs: Sequence[Path] = ()
    recording: Path | None = None
    keep_stacks: bool = False
    record_all: bool = False
    force: bool = False
    quiet: bool = False
    verbose: bool = False
    print_interval: Callable[[Profile], None] = lambda profile: None


@dataclass(frozen=True, slots=True)
class Measured:
    """is_counted_out: the session ended with the last of --count interval prints."""

    profile: Profile
    is_counted_out: bool


def measure(plan: Measurement) -> Measured:
    """Runs the session to its end. Raises TargetError, TracerError, or RecordingError where there is no result."""
    capture = Capture()
    with _writer(plan) as writer, _files(plan.target, plan.app) as (files, start):
        analysis = Analysis(capture, writer.read_block, files)
        symbolizer = Symbolizer(plan.symbol_dirs, default_cache_dir())
        tracer = start(plan.tracer, plan.options)
        if tracer.fallback and not plan.quiet:
            say(f"measuring by {tracer.name}: {tracer.fallback}")
        for note in tracer.notes if plan.verbose else ():
            say(note)
        _describe(plan, tracer, capture, writer)

        def pull_modules() -> None:
            """A device that goes away takes its files with it: stacks are unwound as long as they can be had."""
            capture.session |= tracer.target
            analysis.survivors()

        def print_interval() -> None:
            capture.session |= tracer.target
            plan.print_interval(make_profile(capture, analysis.survivors(), symbolizer, _interval_view(plan)))

        session = Session(
            tracer=tracer,
            capture=capture,
            files=files,
            writer=writer,
            progress=Progress(plan.quiet, shares_terminal=bool(plan.options.command)),
            schedule=plan.schedule,
            keeps=(lambda kind: True) if plan.recording else (lambda kind: kind == BlockKind.EVIDENCE),
            on_whole=pull_modules if not plan.target.is_local else lambda: None,
            on_snapshot=print_interval,
            on_events=print_events if plan.options.events and not plan.record_all else lambda payload: None,
        )
        session.run()
        capture.session |= tracer.target
        _tell_end(plan, capture)
        pid = target_pid(capture)
        capture.session |= {"missing": [*session.missing, *unprobed_program(capture, pid)], "pid": pid}
        profile = make_profile(capture, analysis.survivors(), symbolizer, plan.view)
        if plan.recording:
            _finish_recording(plan, plan.recording, capture, writer, analysis)
        return Measured(profile, session.is_counted_out)


def _finish_recording(
    plan: Measurement, path: Path, capture: Capture, writer: RecordingWriter, analysis: Analysis
) -> None:
    kinds = {BlockKind.EVENTS} if plan.record_all else set()
    kinds |= STACK_KINDS if plan.keep_stacks else frozenset()
    raw = (block for _, block in Recording(writer.path).blocks() if block.kind in kinds) if kinds else ()
    try:
        write_finished(path, finished_blocks(capture, analysis.survivors(), raw))
    except OSError as error:
        say(
            f"{path} keeps its raw form, stack bytes included: {error.strerror}; make room and run the report on it"
        )
        return
    say(f"wrote {path}")


_Start = Callable[[TracerName, SessionOptions], AgentSession]


@contextmanager
def _files(target: Target, app: AppRequest | None) -> Iterator[tuple[ModuleFiles, _Start]]:
    """The modules of the target's processes, and what starts a session with it."""
    tables = TableCache(default_cache_dir() / "tables")
    if target.is_local:
        if app is not None:
            raise UsageError(f"{app.package} is no app of this machine", "name the device by --serial")
        with closing(ModuleFiles(LocalFiles(True, own_vdso()), tables)) as files:
            yield files, start_tracer
        return
    with (
        closing(DeviceTracers(target, default_cache_dir() / "modules", app)) as device,
        closing(ModuleFiles(device.files, tables)) as files,
    ):
        yield files, device.start


@contextmanager
def _writer(plan: Measurement) -> Iterator[RecordingWriter]:
    """The file that blocks go to: the recording itself, or one in the private spool."""
    if plan.recording:
        with closing(RecordingWriter(plan.recording, plan.force)) as writer:
            try:
                yield writer
            except KeyboardInterrupt:
                say(f"{plan.recording} keeps what had arrived, stack bytes included; run the report on it")
                raise
            return
    with open_spool() as place, closing(RecordingWriter(place / "blocks")) as writer:
        yield writer


def _describe(plan: Measurement, tracer: AgentSession, capture: Capture, writer: RecordingWriter) -> None:
    options = plan.options
    session: dict[str, Any] = {
        "program": f"{PROGRAM} {version(PROGRAM)}",
        "tracer": tracer.name,
        "unwind": "cfi",
        "command": shlex.join(options.command) or command_of(options.pid),
        "serial": plan.target.serial,
        "pid": options.pid or 0,
        "attached": options.pid is not None,
        "sample_bytes": 0 if tracer.name == "bpf" else options.sample_bytes,  # BPF counts every allocation
        "options": asdict(options),
        "about": tracer.about,
    } | tracer.target
    block = payloads.encode_text(BlockKind.SESSION, json.dumps(session))
    capture.add(block, -1)
    writer.write(block)


def command_of(pid: int | None) -> str:
    """The shell-quoted command line of a process, "" where it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return shlex.join(os.fsdecode(word) for word in words) if words != [b""] else ""


def _interval_view(plan: Measurement) -> View:
    view = plan.view
    return View(plan.options.older_ns, view.min_size, view.max_size, view.show_allocs)


def _tell_end(plan: Measurement, capture: Capture) -> None:
    """What became of the command."""
    if not plan.options.command or capture.end is None:
        return
    name, reason, status = plan.options.command[0], int(capture.end["reason"]), int(capture.end["status"])
    if reason == Reason.STOPPED:
        say(f"the measurement is over; {name} goes on running (pid {target_pid(capture)})")
    elif reason == Reason.TARGET_EXIT and status >= 0:
        code = os.waitstatus_to_exitcode(status & 0xFFFF)
        say(f"{name} exited with status {code}" if code >= 0 else f"{name} was killed by signal {-code}")
