"""A measurement: tracer → session → analysis, and the cleanup of all three."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from memleak_android.host.analysis.hook_coverage import hooked_missing, hooked_remarks, unprobed_programs
from memleak_android.host.analysis.pipeline import View, make_profile, target_pid
from memleak_android.host.analysis.provenance import describe_device
from memleak_android.host.console import PROGRAM, say
from memleak_android.host.errors import ExitCode, TargetError, TracerError, UsageError
from memleak_android.host.fleet.published_copies import Share, share_nothing
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import Survivors, find_survivors
from memleak_android.host.machine.linker_command import words_of_program
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.local.process import command_line, memory_limits
from memleak_android.host.machine.scan.blocks import scan_local_memory
from memleak_android.host.machine.target import Target
from memleak_android.host.profile.coverage import Answer, Condition, Reason
from memleak_android.host.profile.profile import Profile
from memleak_android.host.recording.file import Recording, RecordingWriter, write_finished
from memleak_android.host.recording.write import STACK_KINDS, recording_blocks
from memleak_android.host.session.live_view import REFRESH_NS, LivePlan, LiveView
from memleak_android.host.session.marks import open_marks
from memleak_android.host.session.observers import (
    DeviceUnwinder,
    EventPrinter,
    IntervalPrinter,
    SessionObserver,
    TargetFacts,
)
from memleak_android.host.session.other_allocators import other_allocators, python_objects
from memleak_android.host.session.progress import Progress
from memleak_android.host.session.reachability import MemoryLook, ScanMemory
from memleak_android.host.session.session import Schedule, Session
from memleak_android.host.session.smaps import LOCAL_MEMORY, ReadMemory, SmapsReader, device_memory
from memleak_android.host.session.spool import open_spool
from memleak_android.host.session.unmeasured_children import UnmeasuredChildren, detached
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles, own_vdso
from memleak_android.host.stacks.perf_maps import PerfMaps
from memleak_android.host.stacks.stack_unwinder import StackUnwinder
from memleak_android.host.symbols.packages import PackageSearch
from memleak_android.host.symbols.symbolizer import Symbolizer, default_cache_dir
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.android.device import AppRequest, DeviceTracers
from memleak_android.host.tracers.local.start import TracerName, start_tracer
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import Block, BlockKind
from memleak_android.host.wire.blocks import Reason as EndReason
from memleak_android.host.wire.session import coverage_field
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.file_writing import is_stream, remove

HELD_UP_S = 0.1  # the agent's buffers bridge shorter stalls by the host


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """The recording that is kept, and what of it. path: None = nothing is kept. force: overwrite it."""

    path: Path | None = None
    keep_stacks: bool = False
    keep_events: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """Target, device and outputs of a session.

    on_interval: gets the profile of each interval, and the same one with blocks of all ages.
    share: gets the local copies of a device's files, by build-id.
    """

    options: SessionOptions
    tracer: TracerName
    view: View
    schedule: Schedule
    target: Target = field(default_factory=LocalMachine)
    app: AppRequest | None = None
    symbol_dirs: Sequence[Path] = ()
    recording: RecordingPlan = field(default_factory=RecordingPlan)
    reachability: bool = False
    quiet: bool = False
    verbose: bool = False
    on_interval: Callable[[Profile, Profile], None] | None = None
    live: LivePlan | None = None
    labels: Sequence[tuple[str, str]] = ()
    share: Share = share_nothing


@dataclass(frozen=True, slots=True)
class Measured:
    """is_counted_out: the session ended with the last of --count interval prints."""

    profile: Profile
    is_counted_out: bool


def measure(plan: Measurement) -> Measured:
    """Runs the session to its end. Raises TargetError, TracerError, or RecordingError where there is no result."""
    try:
        return _measure(plan)
    except _Refused as refused:
        if not plan.quiet:
            say(f"measuring by {refused.second_choice}: {refused.error.message}")
        return _measure(replace(plan, tracer=refused.second_choice))


class _Refused(Exception):
    """The target refused the tracer, and another one was chosen beforehand for that case."""

    def __init__(self, error: TracerError | TargetError, second_choice: Literal["bpf"]) -> None:
        self.error, self.second_choice = error, second_choice


def _measure(plan: Measurement) -> Measured:
    capture = Capture()
    with _writer(plan) as writer, _files(plan) as opened, open_marks() as marks:
        files, start, memory, scan = opened
        unwinder = StackUnwinder(writer.read_block, files, capture.kernel_symbols, capture.python)
        packages = PackageSearch(is_live=True)
        symbolizer = Symbolizer(plan.symbol_dirs, default_cache_dir(), packages=packages)
        look = MemoryLook(capture, scan) if plan.reachability else None
        parts = _Parts(capture, files, writer, unwinder, symbolizer, SmapsReader(capture, memory))
        live = (
            LiveView(plan.live, capture, unwinder, symbolizer, marks, plan.view, scan) if plan.live else None
        )
        with live or nullcontext():
            tracer = _start(plan, start, capture, writer)
            session = Session(
                tracer,
                capture,
                files,
                writer,
                Progress(plan.quiet or live is not None, shares_terminal=bool(plan.options.command)),
                plan.schedule if live is None else replace(plan.schedule, refresh_ns=REFRESH_NS),
                marks,
                _observers(plan, tracer, parts, live),
                keeps_all=plan.recording.path is not None,
                at_end=look.take if look else None,
                holds_end=plan.options.hold_end,
            )
            try:
                session.run()
            except (TracerError, TargetError) as error:
                may_go_on = error.exit_code != ExitCode.ABORTED and plan.schedule.scenario is None
                if tracer.second_choice and not tracer.has_begun and may_go_on:
                    raise _Refused(error, tracer.second_choice) from error
                raise
            parts.smaps.ask_drivers()
        capture.session |= tracer.target
        _tell_end(plan, capture)
        _tell_held_up(tracer, capture)
        _answer_conditions(plan, session.missing, tracer, capture, files)
        capture.remarks += hooked_remarks(capture)
        survivors = find_survivors(capture, unwinder, with_past=True)
        survivors = survivors if look is None else look.judge(survivors)
        capture.remarks += [
            f"{refused}; stacks end there, and its functions have no names" for refused in files.refused
        ]
        profile = make_profile(capture, survivors, symbolizer, plan.view)
        if plan.recording.path:
            _finish_recording(plan.recording, plan.recording.path, capture, writer, survivors)
        return Measured(profile, session.is_counted_out and live is None)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Inputs of a session's observers."""

    capture: Capture
    files: ModuleFiles
    writer: RecordingWriter
    unwinder: StackUnwinder
    symbolizer: Symbolizer
    smaps: SmapsReader


def _start(plan: Measurement, start: _Start, capture: Capture, writer: RecordingWriter) -> AgentSession:
    tracer = start(plan.tracer, plan.options)
    if tracer.fallback and not plan.quiet:
        say(f"measuring by {tracer.name}: {tracer.fallback}")
    for note in tracer.notes if plan.verbose else ():
        say(note)
    for problem in tracer.pairs.problems if tracer.pairs else ():
        say(problem)
    _describe(plan, tracer, capture, writer)
    return tracer


def _observers(
    plan: Measurement, tracer: AgentSession, parts: _Parts, live: LiveView | None
) -> list[SessionObserver]:
    """In the order in which they are called."""
    capture, unwinder = parts.capture, parts.unwinder
    observers: list[SessionObserver] = [TargetFacts(capture, tracer)]
    if live is not None:
        observers.append(live)
    elif plan.on_interval is not None:
        view = _interval_view(plan)
        observers.append(IntervalPrinter(capture, unwinder, parts.symbolizer, view, plan.on_interval))
    if not plan.target.is_local:
        writer = parts.writer if plan.recording.path else None
        observers.append(DeviceUnwinder(capture, parts.files, None if live else unwinder, writer))
    observers.append(parts.smaps)
    if plan.target.is_local and not plan.options.follow:
        observers.append(UnmeasuredChildren(capture))
    if plan.options.events and not plan.recording.keep_events:
        observers.append(EventPrinter(tracer.pairs))
    return observers


def _finish_recording(
    plan: RecordingPlan, path: Path, capture: Capture, writer: RecordingWriter, survivors: Survivors
) -> None:
    kinds = {BlockKind.EVENTS} if plan.keep_events else set()
    kinds |= STACK_KINDS if plan.keep_stacks else frozenset()
    raw = (block for _, block in Recording(writer.path).blocks() if block.kind in kinds) if kinds else ()
    try:
        write_finished(path, recording_blocks(capture, survivors, raw))
    except OSError as error:
        left = f"It still holds raw stack bytes; free space, then run `report {path}`"
        say(
            f"could not finish {path}: {error.strerror}. {left if path == writer.path else 'Use another path'}"
        )
        return
    say(f"wrote {path}")


_Start = Callable[[TracerName, SessionOptions], AgentSession]


@contextmanager
def _files(plan: Measurement) -> Iterator[tuple[ModuleFiles, _Start, ReadMemory, ScanMemory]]:
    """The modules of the target's processes, and the functions that start a session, read smaps and scan memory."""
    tables, target, app = TableCache(default_cache_dir() / "tables"), plan.target, plan.app
    if target.is_local:
        if app is not None:
            raise UsageError(f"{app.package} is not an app of this machine", "name the device by --serial")
        with closing(ModuleFiles(LocalFiles(True, own_vdso()), tables, PerfMaps())) as files:
            yield files, start_tracer, LOCAL_MEMORY, scan_local_memory
        return
    with (
        closing(DeviceTracers(target, default_cache_dir() / "modules", app)) as device,
        closing(ModuleFiles(device.files, tables)) as files,
    ):
        yield files, device.start, device_memory(target, device.files), device.scan_memory
        plan.share(device.kept_copies)


@contextmanager
def _writer(plan: Measurement) -> Iterator[RecordingWriter]:
    """The file that blocks go to: the recording itself, or one in the private spool. A stream cannot be read back."""
    if plan.recording.path and not is_stream(plan.recording.path):
        with closing(RecordingWriter(plan.recording.path, plan.recording.force)) as writer:
            try:
                yield writer
            except KeyboardInterrupt:
                if writer.is_empty:
                    raise
                say(f"{writer.path} holds what had arrived, stack bytes included; run `report {writer.path}`")
                raise
            finally:
                if writer.is_empty:  # it would be in the way of the next try
                    remove(plan.recording.path)
            return
    with open_spool() as folder, closing(RecordingWriter(folder / "blocks")) as writer:
        yield writer


def _describe(plan: Measurement, tracer: AgentSession, capture: Capture, writer: RecordingWriter) -> None:
    options = plan.options
    is_whole = options.every_process or (bool(options.kernel) and options.pid is None and not options.command)
    session: dict[str, Any] = {
        "program": f"{PROGRAM} {version(PROGRAM)}",
        "tracer": tracer.name,
        "unwind": options.unwind,
        "command": shlex.join(words_of_program(options.command)) or command_of(options.pid),
        "serial": plan.target.serial,
        "labels": dict(plan.labels),
        **describe_device(plan.target),
        "pid": options.pid or 0,
        "missing_free_expected": options.missing_free_expected,
        "whole_machine": is_whole,
        "every_process": options.every_process,
        "attached": options.pid is not None or is_whole,
        "sample_bytes": 0
        if tracer.name in ("bpf", "bcc")
        else options.sample_bytes,  # BPF counts every allocation
        "options": asdict(replace(options, pairs=None))
        | {"pairs": asdict(tracer.pairs) if tracer.pairs else None},
        "about": tracer.about,
        "heap": options.allocator.is_traced and not options.kernel,
        "coverage": coverage_field(_functions_answer(tracer)),
    } | tracer.target
    blocks = [payloads.encode_text(BlockKind.SESSION, json.dumps(session))]
    if len(tracer.stops):
        blocks.append(Block(BlockKind.STOPS, tracer.stops.tobytes()))
    for block in blocks:
        capture.add(block, -1)
        writer.write(block)


def command_of(pid: int | None) -> str:
    """The shell-quoted command line of a process, "" where it cannot be read."""
    with suppress(OSError):
        return command_line(pid) if pid is not None else ""
    return ""


def _interval_view(plan: Measurement) -> View:
    view = plan.view
    return View(
        plan.options.older_ns,
        view.min_size,
        view.max_size,
        view.show_allocs,
        warmup_ns=None,
        ownership=view.ownership,
    )


def _answer_conditions(
    plan: Measurement,
    of_session: Sequence[str],
    tracer: AgentSession,
    capture: Capture,
    files: ModuleFiles,
) -> None:
    """Into the session what the result lacks, and whose it is."""
    pid = target_pid(capture)
    if plan.target.is_local and pid:
        capture.session |= {"limits": memory_limits(pid)}
    of_session = [*of_session, *_tell_scenario(plan, capture)]
    others = list[Reason]()
    if plan.target.is_local:
        others = [*other_allocators(capture, files), *python_objects(capture, files, plan.options)]
        if plan.options.command and not plan.options.follow:
            others += detached(capture)
    answers: dict[Condition, Sequence[Reason]] = {
        Condition.SESSION: [Reason(Condition.SESSION, Answer.NO, text) for text in of_session],
        Condition.PROGRAMS: [*unprobed_programs(capture), *hooked_missing(capture), *others],
        **_functions_answer(tracer),
    }
    capture.session |= {"coverage": coverage_field(answers), "pid": pid}


def _functions_answer(tracer: AgentSession) -> dict[Condition, Sequence[Reason]]:
    """Nothing where the tracer does not know."""
    if tracer.unplaced is None:
        return {}
    return {Condition.FUNCTIONS: [Reason(Condition.FUNCTIONS, Answer.NO, text) for text in tracer.unplaced]}


def _tell_scenario(plan: Measurement, capture: Capture) -> list[str]:
    """Into the session what growth by runs is judged by; returns what is missing."""
    scenario = plan.schedule.scenario
    if scenario is None:
        return []
    capture.session |= {"scenario": {"command": scenario.command, "ends_ns": scenario.ends_ns}}
    if scenario.is_over and not scenario.failure:
        return []
    done = f"{len(scenario.ends_ns)} of {scenario.repeat} runs of the scenario are measured"
    return [f"{done}: {scenario.failure or 'the session ended before'}"]


def _tell_held_up(tracer: AgentSession, capture: Capture) -> None:
    if tracer.held_up_s >= HELD_UP_S:
        capture.remarks.append(
            f"the host fell behind and stalled the tracer for {tracer.held_up_s:.1f} s; events dropped meanwhile are"
            " counted as lost"
        )


def _tell_end(plan: Measurement, capture: Capture) -> None:
    """Outcome of the command."""
    if not plan.options.command or capture.end is None:
        return
    name = words_of_program(plan.options.command)[0]
    reason, status = int(capture.end["reason"]), int(capture.end["status"])
    if reason == EndReason.STOPPED:
        say(f"the measurement is over; {name} goes on running (pid {target_pid(capture)})")
    elif reason == EndReason.TARGET_EXIT and status >= 0:
        code = os.waitstatus_to_exitcode(status & 0xFFFF)
        say(f"{name} exited with status {code}" if code >= 0 else f"{name} was killed by signal {-code}")
