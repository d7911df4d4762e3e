"""`diff`: what is new, grown, shrunk or gone between two results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.options import FILE, common_options
from memleak_android.host.commands.results import check_new, show, write_file
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
@click.option(
    "-T", "--top", type=click.IntRange(0), default=10, show_default=True, help="Sites shown; 0 = all."
)
@click.option(
    "--symbols",
    type=FILE,
    multiple=True,
    metavar="DIR",
    help="Unstripped files, by build-id: a folder, a file, an APK, AAB or zip.",
)
@common_options
@click.pass_context
def diff(
    context: click.Context, /, old: Path, new: Path, format_: str, path: Path | None, **given: Any
) -> int:
    """Compares two results, recordings or report.json: what is new, grown, shrunk or gone, by call stack."""
    refuse_command(context)
    if path:
        check_new(path, given["force"])
    profiles = [read_profile(file, View(), given["symbols"]) for file in (old, new)]
    comparison = compare(*profiles)
    options, form = ReportOptions(given["top"]), COMPARISON_FORMATS[format_]
    if path:
        write_file(path, form, comparison, options)
    else:
        show(form, comparison, options)
    return 0
