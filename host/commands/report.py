"""`report`: a recording, finished or cut, or a report.json, as a report of any format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.gating import conclude, gate_rules, source_root
from memleak_android.host.commands.options import FILE, common_options, result_options, view_options
from memleak_android.host.commands.results import check_new, check_stdout, show, write_file
from memleak_android.host.console import refuse_command
from memleak_android.host.profile.gate import judge
from memleak_android.host.recording.read import is_report, read_profile
from memleak_android.host.reports.base import ReportOptions
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
    help="Threads that unwind what an unfinished recording holds.",
)
@click.option(
    "--pid",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Of a recording of several processes (--all, --follow) what this one holds.",
)
@view_options
@result_options
@common_options
@click.pass_context
def report(context: click.Context, /, recording: Path, format_: str, path: Path | None, **given: Any) -> int:
    """Makes a report from a recording (what a cut one still holds is reported as incomplete), or from a report.json."""
    refuse_command(context)
    if path:
        check_new(path, given["force"])
    else:
        check_stdout(format_)
    if is_report(recording):
        _refuse_late_options(recording, given)
    rules = gate_rules(given)
    view = View(
        min_size=given["min_size"],
        max_size=given["max_size"],
        show_allocs=given["show_allocs"] or FORMATS[format_].needs_blocks,
        max_lost=given["max_lost"],
        warmup_ns=given["warmup"],
        cooldown_ns=given["cooldown"],
    )
    options = ReportOptions(
        given["top"], given["show_allocs"], given["sort"], given["combined_only"], source_root=source_root()
    )
    with StepProgress() as progress:
        profile = read_profile(
            recording, view, given["symbols"], given["jobs"], progress.tell, only_pid=given["pid"]
        )
        profile = judge(profile, rules)
        progress.tell(f"writing {format_}", 0.0)
    if path:
        write_file(path, FORMATS[format_], profile, options)
    else:
        show(FORMATS[format_], profile, options)
    return conclude(profile, given)


def _refuse_late_options(path: Path, given: dict[str, Any]) -> None:
    """What is a matter of the recording cannot be asked of a report.json any more."""
    late = {
        "--pid": given["pid"],
        "--symbols": given["symbols"],
        "-z": given["min_size"],
        "-Z": given["max_size"] < 2**64 - 1,
    }
    name = next((name for name, value in late.items() if value), None)
    if name:
        raise click.UsageError(f"{name}: {path} is a report, not a recording; use the recording for that")
