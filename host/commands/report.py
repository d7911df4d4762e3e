"""`report`: a recording or a report.json as a report of any format."""

from __future__ import annotations

from pathlib import Path

import click

from memleak_android.host.commands.gating import conclude, gate_rules, source_root
from memleak_android.host.commands.options import (
    CommonOptions,
    ResultOptions,
    ViewOptions,
    common_options,
    result_options,
    view_options,
)
from memleak_android.host.commands.results import check_new, check_stdout, show, write_file
from memleak_android.host.commands.values import FILE
from memleak_android.host.console import refuse_command
from memleak_android.host.profile.gate import judge
from memleak_android.host.recording.read import is_report, read_profile
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.session.progress import StepProgress


@click.command(short_help="Make a report from a recording.")
@click.argument("recording", type=FILE, metavar="FILE")
@click.option("--format", "format_", type=click.Choice(sorted(FORMATS)), default="text", show_default=True)
@click.option("-o", "path", type=FILE, metavar="OUT", help="Write there, not to stdout.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    metavar="N",
    help="Threads that unwind the stacks of an unfinished recording.",
)
@click.option(
    "--pid",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Only this process of a recording of several (--all, --follow).",
)
@view_options
@result_options
@common_options
@click.pass_context
def report(
    context: click.Context,
    /,
    recording: Path,
    format_: str,
    path: Path | None,
    jobs: int,
    pid: int | None,
    view: ViewOptions,
    result: ResultOptions,
    common: CommonOptions,
) -> int:
    """Makes a report from a recording or a report.json. A truncated recording gives an incomplete report."""
    refuse_command(context)
    if path:
        check_new(path, common.force)
    else:
        check_stdout(format_)
    if is_report(recording):
        _refuse_late_options(recording, view, result, pid)
    rules = gate_rules(result, common.force)
    shown = view.view(result.max_lost, needs_blocks=FORMATS[format_].needs_blocks)
    options = view.report_options(source_root())
    with StepProgress() as progress:
        profile = read_profile(recording, shown, result.symbols, jobs, progress.update, only_pid=pid)
        profile = judge(profile, rules)
        progress.update(f"writing {format_}", 0.0)
    if path:
        write_file(path, FORMATS[format_], profile, options)
    else:
        show(FORMATS[format_], profile, options)
    return conclude(profile, result.gen_suppressions)


def _refuse_late_options(path: Path, view: ViewOptions, result: ResultOptions, pid: int | None) -> None:
    """Options that need the blocks of a recording, which a report.json does not hold."""
    late = {"--pid": pid, "--symbols": result.symbols, "-z": view.min_size, "-Z": view.max_size < 2**64 - 1}
    name = next((name for name, value in late.items() if value), None)
    if name:
        raise click.UsageError(f"{name}: {path} is a report, not a recording; use the recording for that")
