"""`trace`, the default verb: measure a process or a command and say what it still holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.every_process import refuse_beside_all
from memleak_android.host.commands.filters import tracer_for
from memleak_android.host.commands.gating import conclude, gate_rules, refuse_limit_by_run, source_root
from memleak_android.host.commands.kernel import KERNEL_MAX_LIVE, kernel_groups
from memleak_android.host.commands.live_plan import check_live, live_plan, tell_output
from memleak_android.host.commands.options import (
    DURATION,
    FILE,
    common_options,
    label_option,
    result_options,
    target_options,
    tracer_options,
    view_options,
)
from memleak_android.host.commands.pairs import with_pairs
from memleak_android.host.commands.results import Destinations, format_option, write_results
from memleak_android.host.commands.target import chosen_target
from memleak_android.host.console import Invocation
from memleak_android.host.machine.adb.app import check_package
from memleak_android.host.profile.gate import judge
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.timeline import Timeline
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.text import interval
from memleak_android.host.session.measure import Measurement, measure
from memleak_android.host.session.scenario import Scenario
from memleak_android.host.session.session import Schedule
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.android.device import AppRequest
from memleak_android.host.wire.blocks import STACK_BYTES_MAX


@click.command(short_help="Measure a process or a command (what runs without a verb).")
@target_options
@tracer_options
@click.option(
    "--older",
    type=DURATION,
    default="500ms",
    metavar="AGE",
    help="Interval prints show blocks from this age.",
)
@click.option("--interval", type=DURATION, metavar="T", help="Print the top stacks every T.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N interval prints.")
@click.option(
    "--scenario",
    metavar="CMD",
    help="Run CMD (by sh, on this machine) --repeat times; what grows by each run?",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="See --scenario."
)
@click.option("--trace", "events", is_flag=True, help="Print every call.")
@click.option(
    "--live",
    is_flag=True,
    help="While it runs, the stacks on the terminal: sorted, filtered, opened (docs/use/live.md).",
)
@click.option(
    "--reachability",
    is_flag=True,
    help="At the end of the measurement, or of CMD, stop the target once and say which blocks nothing refers to any more.",
)
@view_options
@click.option(
    "-o",
    "folder",
    type=FILE,
    metavar="DIR",
    help="Write report.txt, report.json and recording.memleak there.",
)
@format_option
@click.option(
    "--json",
    "json_",
    type=FILE,
    metavar="FILE|-",
    help="Write report.json there (gzipped where the name ends in .gz); - is stdout.",
)
@click.option("--keep-stacks", is_flag=True, help="Keep stack bytes in the recording of -o.")
@label_option
@result_options
@common_options
@click.pass_obj
def trace(invocation: Invocation, /, **given: Any) -> int:
    """Measures a process (--pid) or a command (-- CMD) and reports what it still holds."""
    if given["count"] is not None and given["interval"] is None:
        raise click.UsageError("--count without --interval; say how often by --interval T")
    if given["scenario"] is not None and given["interval"] is not None:
        raise click.UsageError("both --scenario and --interval; snapshots are taken by one of them")
    if given["live"]:
        check_live(given)
    refuse_limit_by_run(given["fail_on_growth"], given["scenario"])
    refuse_beside_all(invocation, given)
    kernel_groups(invocation, given)  # what does not go with it is said before a device is looked for
    destinations = Destinations(given["json_"], given["folder"], given["force"], given["formats"])
    destinations.prepare()
    target = chosen_target(invocation, given)
    rules, timeline = gate_rules(given), Timeline()
    report_options = ReportOptions(
        given["top"], given["show_allocs"], given["sort"], given["combined_only"], source_root=source_root()
    )
    measurement = Measurement(
        options=session_options(invocation, given),
        app=app_request(given),
        target=target,
        tracer=tracer_for(given),
        view=View(
            min_size=given["min_size"],
            max_size=given["max_size"],
            show_allocs=given["show_allocs"] or destinations.needs_blocks,
            max_lost=given["max_lost"],
            warmup_ns=given["warmup"],
            cooldown_ns=given["cooldown"],
        ),
        schedule=Schedule(given["duration"], given["interval"], given["count"]),
        symbol_dirs=given["symbols"],
        recording=destinations.recording,
        keep_stacks=given["keep_stacks"],
        reachability=given["reachability"],
        force=given["force"],
        quiet=given["quiet"],
        verbose=given["verbose"],
        labels=given["labels"],
        scenario=Scenario(given["scenario"], given["repeat"]) if given["scenario"] is not None else None,
        print_interval=lambda profile: _print_interval(profile, report_options),
        seen=timeline.add,
        live=live_plan(invocation, given, target.is_local, timeline) if given["live"] else None,
    )
    try:
        measured = measure(measurement)
    finally:
        if measurement.live is not None and measurement.live.output is not None:
            tell_output(measurement.live.output)
    profile = replace(measured.profile, timeline=timeline.until(measured.profile))
    profile = judge(profile, rules)
    write_results(profile, destinations, report_options, shown=measured.is_counted_out)
    return conclude(profile, given)


def session_options(invocation: Invocation, given: dict[str, Any]) -> SessionOptions:
    """Raises UsageError unless there is exactly one target."""
    command, pid = invocation.command, given["pid"]
    if command is not None and not command:
        raise click.UsageError("no command behind --; write -- CMD and its arguments")
    if command and pid is not None:
        raise click.UsageError("both --pid and a command; name one target")
    if given["package"] and (command or pid is not None):
        raise click.UsageError(f"--package and {'a command' if command else '--pid'}; name one target")
    kernel = kernel_groups(invocation, given)
    refuse_beside_all(invocation, given)
    if not command and pid is None and not given["package"] and not kernel and not given["every_process"]:
        raise click.UsageError("no target; name one by --pid N, --package APP, --all or -- CMD")
    limits = {name: given[key] for name, key in _TRACE_ONLY.items() if key in given}
    options = SessionOptions(
        pid=pid,
        command=command or (),
        follow=given["follow"],
        stack_bytes=_slice_cap(given["stack_bytes"]),
        sample_bytes=given["sample_bytes"],
        every_stack=given["every_stack"],
        extend_stacks=given["extend_stacks"],
        adaptive=given["adaptive"],
        evidence_after_ns=given["evidence_after"],
        unwind="cfi" if given["unwind"] == "auto" else given["unwind"],
        max_live=given["max_live"] or (KERNEL_MAX_LIVE if kernel else _MAX_LIVE),
        every_process=given["every_process"],
        kernel=int(kernel),
        without_btf=given["without_btf"],
        max_stacks=given["max_stacks"] or 0,
        missing_free_expected=bool(kernel) and given["wa_missing_free"],
        mmap=given["mmap"],
        perf_events=given["perf_events"],
        without_multi=given["without_multi"],
        hold_end=given.get("reachability", False) and bool(command) and not given.get("live"),
        object=given["object_"],
        symbols_prefix=given["symbols_prefix"],
        **limits,
    )
    return with_pairs(options, given)


def app_request(given: dict[str, Any]) -> AppRequest | None:
    """What --package and its like ask for. Raises UsageError for --process and the others without it."""
    package = given["package"]
    if package is None:
        alone = next((f"--{name}" for name in ("process", "launch", "wait") if given[name]), "")
        if alone:
            raise click.UsageError(f"{alone} without --package; name the app by --package APP")
        return None
    if given["launch"] and given["wait"]:
        raise click.UsageError("both --launch and --wait; start the app by one of them")
    return AppRequest(check_package(package), given["process"], given["user"], given["launch"], given["wait"])


def _slice_cap(wanted: int) -> int:
    """In whole words. 64 KiB is taken for the eight bytes less that a record can carry."""
    if wanted > 1 << 16:
        raise click.UsageError(
            f"--stack-bytes {wanted}: a record carries at most {STACK_BYTES_MAX} bytes of stack"
        )
    return min(wanted, STACK_BYTES_MAX) // 8 * 8


_MAX_LIVE = 4_000_000
_TRACE_ONLY = {"older_ns": "older", "min_size": "min_size", "max_size": "max_size", "events": "events"}


def _print_interval(profile: Profile, options: ReportOptions) -> None:
    interval.write(profile, sys.stdout, options)
    sys.stdout.flush()
