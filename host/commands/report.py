"""`report`: a recording or a report.json as a report of any format."""

from dataclasses import dataclass
from pathlib import Path

import click

from memleak_android.host.commands.gating import conclude, gate_rules, source_root
from memleak_android.host.commands.options import (
    CommonOptions,
    ResultOptions,
    ViewOptions,
    format_option,
    option,
    out_option,
    takes_options,
)
from memleak_android.host.commands.results import Destination, in_folder, result_path
from memleak_android.host.commands.values import JOBS, PID, Value
from memleak_android.host.console import refuse_command
from memleak_android.host.profile.gate import judge
from memleak_android.host.recording.read import is_report, read_profile
from memleak_android.host.reports.formats import FORMATS, format_of
from memleak_android.host.session.progress import StepProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How a recording is read, and the report's format and destination."""

    format: str | None = format_option(click.Choice(sorted(FORMATS)))
    path: Path | None = out_option()
    jobs: int = option(
        "--jobs N", JOBS, "Threads that unwind the stacks of an unfinished recording.", default=1
    )
    pid: int | None = option("--pid N", PID, "Only this process of a recording of several (--all, --follow).")


@click.command(short_help="Make a report from a recording.")
@click.argument("recording", type=Value("file", result_path), metavar="FILE")
@takes_options
@click.pass_context
def report(
    context: click.Context,
    /,
    recording: Path,
    reading: ReadingOptions,
    view: ViewOptions,
    result: ResultOptions,
    common: CommonOptions,
) -> int:
    """Makes a report from a recording or a report.json. A truncated recording gives an incomplete report."""
    refuse_command(context)
    recording = in_folder(recording)
    name = reading.format or format_of(reading.path, FORMATS) or "text"
    form = FORMATS[name]
    destination = Destination(reading.path, name, form, common.force)
    if is_report(recording):
        _refuse_late_options(recording, view, result, reading.pid)
    rules = gate_rules(result, common.force)
    shown = view.view(result.max_lost, needs_blocks=form.needs_blocks)
    with StepProgress() as progress:
        profile = read_profile(
            recording, shown, result.symbols, reading.jobs, progress.update, only_pid=reading.pid
        )
        profile = judge(profile, rules)
        progress.update(f"writing {name}", 0.0)
    destination.write(profile, view.report_options(source_root(), verbose=common.verbose))
    return conclude(profile, result)


def _refuse_late_options(path: Path, view: ViewOptions, result: ResultOptions, pid: int | None) -> None:
    """Options that need the blocks of a recording, which a report.json does not hold."""
    late: dict[str, object] = {
        "--pid": pid,
        "--symbols": result.symbols,
        "-z": view.min_size,
        "-Z": view.max_size < 2**64 - 1,
    }
    late |= {"--mine": view.mine, "--not-mine": view.not_mine}
    name = next((name for name, value in late.items() if value), None)
    if name:
        raise click.UsageError(f"{name}: {path} is a report, not a recording; use the recording for that")
