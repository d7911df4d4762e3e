"""`diff`: what is new, grown, shrunk or gone between two results."""

from __future__ import annotations

from pathlib import Path

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.options import CommonOptions, common_options, symbols_option, top_option
from memleak_android.host.commands.results import check_new, show, write_file
from memleak_android.host.commands.values import FILE
from memleak_android.host.console import refuse_command
from memleak_android.host.profile.comparison import compare
from memleak_android.host.recording.read import read_profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import COMPARISON_FORMATS


@click.command(short_help="Compare two recordings or report.json files.")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option(
    "--format", "format_", type=click.Choice(sorted(COMPARISON_FORMATS)), default="text", show_default=True
)
@click.option("-o", "path", type=FILE, metavar="OUT", help="Write there, not to stdout.")
@top_option
@symbols_option
@common_options
@click.pass_context
def diff(
    context: click.Context,
    /,
    old: Path,
    new: Path,
    format_: str,
    path: Path | None,
    top: int,
    symbols: tuple[Path, ...],
    common: CommonOptions,
) -> int:
    """Compares two results, recordings or report.json: what is new, grown, shrunk or gone, by call stack."""
    refuse_command(context)
    if path:
        check_new(path, common.force)
    profiles = [read_profile(file, View(), symbols) for file in (old, new)]
    comparison = compare(*profiles)
    options, form = ReportOptions(top), COMPARISON_FORMATS[format_]
    if path:
        write_file(path, form, comparison, options)
    else:
        show(form, comparison, options)
    return 0
