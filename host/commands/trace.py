"""`trace`, the default verb: measure a process or a command and say what it still holds."""

from __future__ import annotations

import sys
from typing import Any

import click

from memleak_android.host.analysis import View
from memleak_android.host.commands import Invocation
from memleak_android.host.commands.measure import Measurement, measure
from memleak_android.host.commands.results import EXIT_CODES, Destinations, write_results
from memleak_android.host.commands.session import Schedule
from memleak_android.host.commands.target import chosen_target
from memleak_android.host.device.android_app import check_package
from memleak_android.host.options import (
    DURATION,
    FILE,
    common_options,
    result_options,
    target_options,
    tracer_options,
    view_options,
)
from memleak_android.host.profile import Profile
from memleak_android.host.reports import interval
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.tracers.base import SessionOptions
from memleak_android.host.tracers.device import AppRequest
from memleak_android.host.wire import STACK_BYTES_MAX


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
@click.option("--trace", "events", is_flag=True, help="Print every call.")
@view_options
@click.option(
    "-o",
    "folder",
    type=FILE,
    metavar="DIR",
    help="Write report.txt, report.json and recording.memleak there.",
)
@click.option("--json", "json_", type=FILE, metavar="FILE|-", help="Write report.json there; - is stdout.")
@click.option("--keep-stacks", is_flag=True, help="Keep stack bytes in the recording of -o.")
@result_options
@common_options
@click.pass_obj
def trace(invocation: Invocation, /, **given: Any) -> int:
    """Measures a process (--pid) or a command (-- CMD) and reports what it still holds."""
    if given["count"] is not None and given["interval"] is None:
        raise click.UsageError("--count without --interval; say how often by --interval T")
    destinations = Destinations(given["json_"], given["folder"], given["force"])
    destinations.prepare()
    report_options = ReportOptions(
        given["top"], given["show_allocs"], given["sort"], given["combined_only"], colour=False
    )
    measurement = Measurement(
        options=session_options(invocation, given),
        app=app_request(given),
        target=chosen_target(invocation, given),
        tracer=given["tracer"],
        view=View(
            min_size=given["min_size"],
            max_size=given["max_size"],
            show_allocs=given["show_allocs"],
            limit=given["fail_on_leak"],
            max_lost=given["max_lost"],
        ),
        schedule=Schedule(given["duration"], given["interval"], given["count"]),
        symbol_dirs=given["symbols"],
        recording=destinations.recording,
        keep_stacks=given["keep_stacks"],
        force=given["force"],
        quiet=given["quiet"],
        verbose=given["verbose"],
        print_interval=lambda profile: _print_interval(profile, report_options),
    )
    measured = measure(measurement)
    write_results(measured.profile, destinations, report_options, shown=measured.is_counted_out)
    return EXIT_CODES[measured.profile.verdict]


def session_options(invocation: Invocation, given: dict[str, Any]) -> SessionOptions:
    """Raises UsageError unless there is exactly one target."""
    command, pid = invocation.command, given["pid"]
    if command is not None and not command:
        raise click.UsageError("no command behind --; write -- CMD and its arguments")
    if command and pid is not None:
        raise click.UsageError("both --pid and a command; name one target")
    if given["package"] and (command or pid is not None):
        raise click.UsageError(f"--package and {'a command' if command else '--pid'}; name one target")
    if not command and pid is None and not given["package"]:
        raise click.UsageError("no target; name one by --pid N, --package APP or -- CMD")
    limits = {name: given[key] for name, key in _TRACE_ONLY.items() if key in given}
    return SessionOptions(
        pid=pid,
        command=command or (),
        follow=given["follow"],
        stack_bytes=_slice_cap(given["stack_bytes"]),
        sample_bytes=given["sample_bytes"],
        every_stack=given["every_stack"],
        max_live=given["max_live"],
        mmap=given["mmap"],
        perf_events=given["perf_events"],
        object=given["object_"],
        symbols_prefix=given["symbols_prefix"],
        **limits,
    )


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


_TRACE_ONLY = {"older_ns": "older", "min_size": "min_size", "max_size": "max_size", "events": "events"}


def _print_interval(profile: Profile, options: ReportOptions) -> None:
    interval.write(profile, sys.stdout, options)
    sys.stdout.flush()
