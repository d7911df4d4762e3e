"""`report`: a recording, finished or cut, as a report."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from memleak_android.host.analysis import View, make_profile
from memleak_android.host.capture import Capture
from memleak_android.host.commands import refuse_command, say
from memleak_android.host.commands.results import EXIT_CODES, FORMATS, check_new, show, write_file
from memleak_android.host.device.pulled_files import kept_copies
from memleak_android.host.modules import LocalFiles, ModuleFiles, own_vdso, reopen
from memleak_android.host.options import FILE, common_options, result_options, view_options
from memleak_android.host.recording import Recording
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.survivors import Analysis, Survivors, finished_survivors
from memleak_android.host.symbols import Symbolizer, default_cache_dir
from memleak_android.unwind.table_cache import TableCache


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
@view_options
@result_options
@common_options
@click.pass_context
def report(context: click.Context, /, recording: Path, format_: str, path: Path | None, **given: Any) -> int:
    """Makes a report from a recording. What a cut recording still holds is reported as incomplete."""
    refuse_command(context)
    if path:
        check_new(path, given["force"])
    view = View(
        min_size=given["min_size"],
        max_size=given["max_size"],
        show_allocs=given["show_allocs"],
        limit=given["fail_on_leak"],
        max_lost=given["max_lost"],
    )
    options = ReportOptions(given["top"], given["show_allocs"], given["sort"], given["combined_only"])
    with closing(Recording(recording)) as opened:
        capture, missing = _read(opened)
        survivors = _survivors(capture, opened, given["jobs"])
        profile = make_profile(
            capture, survivors, Symbolizer(given["symbols"], default_cache_dir()), view, missing
        )
    if path:
        write_file(path, FORMATS[format_], profile, options)
        say(f"wrote {path}")
    else:
        show(FORMATS[format_], profile, options)
    return EXIT_CODES[profile.verdict]


def _read(recording: Recording) -> tuple[Capture, list[str]]:
    capture = Capture()
    for offset, block in recording.blocks():
        capture.add(block, offset)
    broken = recording.broken
    return capture, [f"{recording.path} is cut or damaged: {broken.message}"] if broken else []


def _survivors(capture: Capture, recording: Recording, jobs: int) -> Survivors:
    if capture.is_finished:
        kept = default_cache_dir() / "modules"  # of devices
        return finished_survivors(
            capture, lambda path, build_id: reopen(path, build_id, kept_copies(kept, build_id))
        )
    tables = TableCache(default_cache_dir() / "tables")
    files = ModuleFiles(LocalFiles(is_running=False, vdso=own_vdso()), tables)
    return Analysis(capture, recording.read_block, files, jobs=jobs).survivors()
