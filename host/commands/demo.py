"""`demo`: measures a program with planted leaks and compares the result with the planted ones."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.options import CommonOptions, TracingOptions, takes_options
from memleak_android.host.commands.results import show
from memleak_android.host.console import refuse_command
from memleak_android.host.errors import IncompleteError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.session.measure import Measurement, measure
from memleak_android.host.session.session import Schedule
from memleak_android.host.tracers.agent.session_options import SessionOptions


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted leak: its blocks, and its functions innermost first."""

    name: str
    allocator: str
    space: int
    objects: int
    functions: tuple[str, ...]


@click.command(short_help="Measure a program with planted leaks.")
@takes_options
@click.pass_context
def demo(context: click.Context, /, tracing: TracingOptions, common: CommonOptions) -> int:
    """Runs a program with planted leaks and shows which of them are found. Needs no root."""
    refuse_command(context)
    program = find_binary("memleak-demo", local_arch())
    profile = measure(
        Measurement(
            options=SessionOptions(command=(str(program),)),
            tracer=tracing.tracer,
            view=View(),
            schedule=Schedule(),
            symbol_dirs=[program.parent],
            quiet=common.quiet,
            verbose=common.verbose > 0,
        )
    ).profile
    show(FORMATS["text"], profile, ReportOptions(top=3))
    planted = read_planted(program.with_name("demo.json"))
    wrong = _print_comparison(planted, profile)
    if wrong:
        raise IncompleteError(
            f"{wrong} of {len(planted)} planted leaks are not as planted", "run again with -v"
        )
    return 0


def read_planted(path: Path) -> list[Planted]:
    return [
        Planted(one["name"], one["allocator"], one["bytes"], one["objects"], tuple(one["functions"]))
        for one in json.loads(path.read_text())["leaks"]
    ]


def find_sites(planted: Planted, sites: Iterable[CallSite]) -> list[CallSite]:
    """The sites in whose stack the planted functions follow each other; others (a signal frame) may be between."""
    return [
        site for site in sites if _has_in_order([frame.function for frame in site.frames], planted.functions)
    ]


def _has_in_order(names: Iterable[str], wanted: Sequence[str]) -> bool:
    bare = (name.partition("(")[0] for name in names)
    return all(any(name == function for name in bare) for function in wanted)


def _print_comparison(planted: Sequence[Planted], profile: Profile) -> int:
    """Returns the number of lines that are not as planted."""
    print(f"\n{'planted':<12} {'bytes':>9} {'blocks':>7}   {'found':>9} {'blocks':>7}   stack")
    wrong, known = 0, set()
    for one in planted:
        sites = find_sites(one, profile.sites)
        known |= {id(site) for site in sites}
        wrong += _print_line(one, sites)
    others = [site for site in profile.sites if site.kind != "runtime" and id(site) not in known]
    if others or profile.totals.unattributed_objects:
        wrong += _print_line(Planted("nothing else", "", 0, 0, ()), others)
    sys.stdout.flush()
    return wrong


def _print_line(one: Planted, sites: Sequence[CallSite]) -> bool:
    space, objects = sum(s.inuse_space for s in sites), sum(s.inuse_objects for s in sites)
    is_whole = bool(sites) and all(s.end == "ROOT" for s in sites)
    is_right = is_whole and (space, objects) == (one.space, one.objects)
    stack = "complete" if is_whole else "PARTIAL" if sites else "NOT FOUND"
    mark = "" if is_right or not is_whole else "  WRONG"
    print(f"{one.name:<12} {one.space:>9,} {one.objects:>7}   {space:>9,} {objects:>7}   {stack}{mark}")
    return not is_right
