"""`fleet report`: one answer over many recordings."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from memleak_android.host.commands.gating import conclude, gate_rules, source_root
from memleak_android.host.commands.options import (
    CommonOptions,
    ResultOptions,
    cooldown_option,
    format_option,
    option,
    out_option,
    takes_options,
    top_option,
    warmup_option,
)
from memleak_android.host.commands.results import Destination
from memleak_android.host.commands.values import JOBS
from memleak_android.host.console import refuse_command, say
from memleak_android.host.errors import ExitCode, UsageError
from memleak_android.host.profile.gate import judge
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FLEET_FORMATS, FORMATS, format_of

if TYPE_CHECKING:
    from memleak_android.host.fleet.run import Progress as Done
    from memleak_android.host.profile.fleet_profile import FleetProfile

_LINE_S = 10.0
_OWN = FLEET_FORMATS
_OF_MEAN = {"mean-html": FORMATS["html"]} | {name: form for name, form in FORMATS.items() if name not in _OWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """Options for the analysis of the recordings. warmup, cooldown: nanoseconds."""

    engine: str = option(
        "--engine local|dask://HOST:PORT", None, "Where the work runs.", default="local", show_default=True
    )
    jobs: int = option(
        "--jobs N",
        JOBS,
        "Processes of the local engine.",
        default=lambda: len(os.sched_getaffinity(0)),
        show_default="processors",
    )
    dataset: str = option(
        "--dataset URL",
        None,
        "Storage of each recording's rows (Parquet); a recording found there is not analysed again.",
        default="memleak-fleet",
        show_default=True,
    )
    cache: str = option(
        "--cache URL",
        None,
        "Storage of symbols and compiled unwind tables for all workers: a folder, s3://…",
        default="",
    )
    warmup: int = warmup_option()
    cooldown: int = cooldown_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The report's format, destination and length."""

    format: str | None = format_option(click.Choice(sorted({*_OWN, *_OF_MEAN})))
    path: Path | None = out_option()
    top: int = top_option()


@click.group(short_help="One answer over many recordings.", invoke_without_command=True)
@click.pass_context
def fleet(context: click.Context, /) -> None:
    """One answer over the recordings of many devices, runs and versions."""
    refuse_command(context)
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(ExitCode.USAGE)


@fleet.command(short_help="Merge recordings into one report.")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@takes_options
def report(
    sources: tuple[str, ...],
    work: WorkOptions,
    output: OutputOptions,
    result: ResultOptions,
    common: CommonOptions,
) -> int:
    """Merges recordings by call site: how many devices show each, what changed between versions.

    SOURCE: a recording, a folder, a glob, an archive, or any URL that fsspec knows (s3://bucket/runs, https://…).
    """
    name = output.format or format_of(output.path, _OWN) or "text"
    destination = Destination(output.path, name, _OWN.get(name) or _OF_MEAN[name], common.force)
    rules = gate_rules(result, common.force)
    merged = _merge(sources, work, result.symbols, result.max_lost, quiet=common.quiet)
    mean = judge(merged.mean, rules)
    shown = replace(merged, mean=mean) if name in _OWN else mean
    destination.write(shown, ReportOptions(output.top, source_root=source_root()))
    return conclude(mean, result)


def _merge(
    sources: Sequence[str], work: WorkOptions, symbol_dirs: Sequence[Path], max_lost: float, *, quiet: bool
) -> FleetProfile:
    """Raises UsageError if no recording can be used."""
    try:
        from memleak_android.host.fleet import dataset, engines, fleet_report, named_cache, processing, run
        from memleak_android.host.fleet import sources as source_lists
    except ImportError as error:
        raise UsageError(f"`fleet` needs {error.name}", "pip install 'memleak-android[fleet]'") from None
    recordings, refused = source_lists.list_sources(sources)
    kept = dataset.Dataset(work.dataset)
    symbols = tuple(str(Path(folder).absolute()) for folder in symbol_dirs)
    cache = work.cache and (source_lists.local_path(work.cache) or work.cache)
    if cache:
        named_cache.check_cache(cache)
    settings = processing.Settings(symbols, work.warmup, work.cooldown, cache, secrets.token_hex(8))
    with _WorkProgress(quiet) as progress:
        worked = run.work(
            recordings, settings, kept, lambda: engines.find_engine(work.engine, work.jobs), progress
        )
    merged = fleet_report.make_fleet_profile(kept, worked, refused, time.time(), max_lost)
    if not merged.counted:
        reasons = [f"{each.source}: {each.reason}" for each in merged.recordings]
        raise UsageError("no recording can be used", "; ".join(reasons[:3]))
    return merged


class _WorkProgress:
    """A bar on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._shown = quiet, time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._has_bar = self._bar.console.is_terminal and not quiet
        self._task = self._bar.add_task("recordings", total=None)

    def __enter__(self) -> Self:
        if self._has_bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_bar:
            self._bar.stop()

    def __call__(self, done: Done) -> None:
        if self._has_bar:
            self._bar.update(self._task, completed=done.done, total=done.total)
        elif not self._quiet and time.monotonic() - self._shown >= _LINE_S:
            self._shown = time.monotonic()
            say(f"{done.done:,} of {done.total:,} recordings ({done.reused:,} known before)")
