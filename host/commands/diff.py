"""`diff`: what is new, grown, shrunk or gone between two results."""

from dataclasses import dataclass
from pathlib import Path

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.gating import source_root
from memleak_android.host.commands.options import (
    CommonOptions,
    format_option,
    out_option,
    symbols_option,
    takes_options,
    top_option,
)
from memleak_android.host.commands.results import Destination, in_folder, result_path
from memleak_android.host.commands.values import Value
from memleak_android.host.console import refuse_command
from memleak_android.host.profile.comparison import compare
from memleak_android.host.profile.ownership import read_ownership
from memleak_android.host.recording.read import read_profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import COMPARISON_FORMATS, format_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """The comparison's format, destination and length."""

    format: str | None = format_option(click.Choice(sorted(COMPARISON_FORMATS)))
    path: Path | None = out_option()
    top: int = top_option()
    symbols: tuple[Path, ...] = symbols_option()


@click.command(short_help="Compare two recordings or report.json files.")
@click.argument("old", type=Value("file", result_path))
@click.argument("new", type=Value("file", result_path))
@takes_options
@click.pass_context
def diff(context: click.Context, /, old: Path, new: Path, output: DiffOptions, common: CommonOptions) -> int:
    """Compares two results, recordings or report.json: what is new, grown, shrunk or gone, by place of the code; -v: by stack."""
    refuse_command(context)
    name = output.format or format_of(output.path, COMPARISON_FORMATS) or "text"
    destination = Destination(output.path, name, COMPARISON_FORMATS[name], common.force)
    view = View(ownership=read_ownership((), ()))
    files = [in_folder(path, is_named=not output.symbols) for path in (old, new)]
    profiles = [read_profile(file, view, output.symbols) for file in files]
    destination.write(
        compare(*profiles), ReportOptions(output.top, source_root=source_root(), verbose=common.verbose)
    )
    return 0
