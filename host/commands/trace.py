"""`trace`, the default verb: measure a process or a command and report what it still holds."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

import click

from memleak_android.host.commands.conflicts import refuse_conflicts, refuse_first, refuse_limit_by_run
from memleak_android.host.commands.gating import conclude, gate_rules, source_root
from memleak_android.host.commands.options import (
    CommonOptions,
    ResultOptions,
    StatusOptions,
    TargetOptions,
    TracingOptions,
    ViewOptions,
    count_option,
    flag,
    label_option,
    option,
    takes_options,
)
from memleak_android.host.commands.results import (
    Destinations,
    out_path,
    stream_of_text,
    write_file,
    write_results,
)
from memleak_android.host.commands.session_plan import app_request, session_options
from memleak_android.host.commands.target import chosen_machine, measured
from memleak_android.host.commands.values import DURATION, FILE, ONE_OR_MORE, SPAN, Value
from memleak_android.host.console import Invocation, printable, say
from memleak_android.host.errors import UsageError
from memleak_android.host.profile.gate import judge
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.timeline import Timeline
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.reports.text import interval
from memleak_android.host.session.live_view import LivePlan
from memleak_android.host.session.live_window import check_terminal
from memleak_android.host.session.measure import Measured, Measurement, RecordingPlan
from memleak_android.host.session.scenario import Scenario
from memleak_android.host.session.session import Schedule
from memleak_android.unwind.file_writing import create, make_new_folder, remove, temporary_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """When snapshots are taken, and what else happens then. older, interval in nanoseconds."""

    older: int = option(
        "--older AGE", DURATION, "Interval prints show blocks from this age.", default="500ms"
    )
    interval: int | None = option("--interval T", SPAN, "Print the top stacks every T.")
    count: int | None = count_option()
    scenario: str | None = option(
        "--scenario CMD", None, "Run CMD (by sh, on this machine) --repeat times; what grows by each run?"
    )
    repeat: int | None = option("--repeat N", ONE_OR_MORE, "See --scenario.", show_default="10")
    events: bool = flag("--trace", "Print every call.")
    live: bool = flag(
        "--live", "Show the stacks on the terminal while it runs: sort, filter, open them (docs/use/live.md)."
    )
    reachability: bool = flag(
        "--reachability",
        "At the end of the measurement, or of CMD, stop the target once and report blocks that nothing refers to.",
    )

    def __post_init__(self) -> None:
        if self.count is not None and self.interval is None:
            raise click.UsageError("--count without --interval; say how often by --interval T")
        if self.scenario is not None and self.interval is not None:
            raise click.UsageError("both --scenario and --interval; snapshots are taken by one of them")
        if self.repeat and self.scenario is None:
            raise click.UsageError("--repeat without --scenario; name what is repeated by --scenario CMD")

    def runs(self) -> Scenario | None:
        return Scenario(self.scenario, self.repeat or 10) if self.scenario is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Options for the output at the end. json: a file or `-`."""

    out: Path | None = option(
        "-o DIR|FILE",
        Value("path", out_path),
        "Write report.txt, report.json and recording.memleak there; to a FILE what its name says: x.html, x.json, x.memleak.",
    )
    formats: tuple[str, ...] = option(
        "--format",
        click.Choice(sorted(FORMATS)),
        "Also this report in the folder of -o (repeatable); without one, on stdout instead of the text.",
        multiple=True,
    )
    json: Path | None = option(
        "--json [FILE]",
        FILE,
        "Write report.json there (gzipped where the name ends in .gz); without a FILE, or with -, to stdout.",
        is_flag=False,
        flag_value="-",
    )
    keep_stacks: bool = flag("--keep-stacks", "Keep stack bytes in the recording of -o.")
    labels: tuple[tuple[str, str], ...] = label_option()


@click.command(short_help="Measure a process or a command (what runs without a verb).")
@takes_options
@click.pass_obj
def trace(
    invocation: Invocation,
    /,
    target: TargetOptions,
    tracing: TracingOptions,
    schedule: ScheduleOptions,
    view: ViewOptions,
    output: OutputOptions,
    result: ResultOptions,
    status: StatusOptions,
    common: CommonOptions,
) -> int:
    """Measures a process (--pid) or a command (-- CMD) and reports what it still holds."""
    command = invocation.command
    live, reachability, events = schedule.live, schedule.reachability, schedule.events
    if live:
        check_live(quiet=common.quiet, count=schedule.count, events=events)
    refuse_limit_by_run(result.fail_on_growth, schedule.scenario)
    events_option = "--trace" if events else ""
    refuse_conflicts(command, target, tracing, reachability=reachability, events_option=events_option)
    destinations = Destinations(output.json, output.out, common.force, output.formats)
    destinations.prepare()
    machine = chosen_machine(command, target)
    rules, timeline = gate_rules(result, common.force), Timeline()
    shown = view.report_options(source_root(), verbose=common.verbose)
    stream = stream_of_text(command)
    session = replace(
        session_options(command, target, tracing, result.symbols),
        older_ns=schedule.older,
        min_size=view.min_size,
        max_size=view.max_size,
        events=events,
        hold_end=reachability and bool(command) and not live,
    )
    measurement = Measurement(
        options=session,
        app=app_request(target),
        target=machine,
        tracer=tracing.tracer,
        view=view.view(result.max_lost, needs_blocks=destinations.needs_blocks),
        schedule=Schedule(tracing.duration, schedule.interval, schedule.count, scenario=schedule.runs()),
        symbol_dirs=result.symbols,
        recording=RecordingPlan(destinations.recording, output.keep_stacks, force=common.force),
        reachability=reachability,
        quiet=common.quiet,
        verbose=common.verbose > 0,
        labels=output.labels,
        on_interval=partial(_interval_ended, timeline, shown, stream),
        live=live_plan(command, target, destinations.folder, shown, machine.is_local, timeline)
        if live
        else None,
    )
    with destinations.measuring(None if live or common.quiet else command):
        done = _measure(measurement)
    profile = judge(replace(done.profile, timeline=timeline.until(done.profile)), rules)
    try:
        write_results(profile, destinations, shown, done.is_counted_out, stream)
    finally:
        code = conclude(profile, result, status if command else None)
    return code


def _measure(measurement: Measurement) -> Measured:
    """Prints where the command's output is, however the measurement ends."""
    try:
        return measured(measurement)
    finally:
        if measurement.live is not None and measurement.live.output is not None:
            say_output(measurement.live.output)


def _interval_ended(
    timeline: Timeline, options: ReportOptions, stream: TextIO, profile: Profile, of_all_ages: Profile
) -> None:
    timeline.add(of_all_ages)
    interval.write(profile, stream, options)
    stream.flush()


SAVED_FORMATS = ("text", "json", "html")
OUTPUT_NAME = "output.txt"


def check_live(*, quiet: bool, count: int | None, events: bool) -> None:
    """Raises UsageError for options that --live excludes, and without a terminal to draw on."""
    refuse_first("--live", {"--quiet": quiet, "--count": count, "--trace": events})
    if os.isatty(2) and (kind := os.environ.get("TERM", "")) in ("", "dumb"):
        raise UsageError(
            f"--live draws on a terminal, and TERM is {kind or 'not set'}",
            "set it (TERM=xterm), or use --interval 5s",
        )
    check_terminal()


def live_plan(
    command: Sequence[str] | None,
    target: TargetOptions,
    folder: Path | None,
    options: ReportOptions,
    is_local: bool,
    timeline: Timeline,
) -> LivePlan:
    """Makes the file for the command's output: in the folder of -o, else a temporary one."""

    def save(profile: Profile) -> str:
        saved = _new_folder(folder or Path())
        for name in SAVED_FORMATS:
            write_file(saved / f"report.{FORMATS[name].suffix}", FORMATS[name], profile, options)
        return f"saved in {saved}"

    return LivePlan(
        target=_target_text(command, target),
        output=_output_file(folder) if command else None,
        is_local=is_local,
        can_scan=not target.kernel and not target.every_process,
        save=save,
        seen=timeline.add,
    )


def _target_text(command: Sequence[str] | None, target: TargetOptions) -> str:
    device = f" on {target.device.serial}" if target.device.serial else ""
    if command:
        return printable(shlex.join(command)) + device
    if target.package:
        return printable(target.package) + device
    return f"pid {target.pid}{device}" if target.pid is not None else "the kernel"


def _output_file(folder: Path | None) -> Path:
    if folder is not None:
        path = folder / OUTPUT_NAME
        descriptor = create(path, force=True)
    else:
        descriptor, path = temporary_file("memleak-android-", f".{OUTPUT_NAME}")
    os.close(descriptor)
    return path


def _new_folder(parent: Path) -> Path:
    """live-DATE-TIME, with a number where that exists."""
    stem = f"live-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            make_new_folder(folder)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(parent / stem)


def say_output(output: Path) -> None:
    """Prints where the command's output is; removes an empty file."""
    try:
        size = output.stat().st_size
    except OSError:
        return
    if size:
        say(f"the output of the command is in {output} ({size:,} bytes)")
    else:
        remove(output)
