"""`record`: measures and keeps the recording, for reports made later or on another machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.conflicts import refuse_conflicts, refuse_limit_by_run, tracer_for
from memleak_android.host.commands.gating import conclude, gate_rules
from memleak_android.host.commands.options import (
    SERIALS,
    CommonOptions,
    ResultOptions,
    TargetOptions,
    TracingOptions,
    common_options,
    label_option,
    result_options,
    target_options,
    tracer_options,
)
from memleak_android.host.commands.record_many import every_serial, record_on_each
from memleak_android.host.commands.results import check_new
from memleak_android.host.commands.session_plan import app_request, session_options
from memleak_android.host.commands.target import chosen_machine
from memleak_android.host.commands.values import FILE
from memleak_android.host.console import Invocation
from memleak_android.host.fleet.published_copies import open_share
from memleak_android.host.profile.gate import judge
from memleak_android.host.session.measure import Measurement, RecordingPlan, measure
from memleak_android.host.session.session import Schedule


@click.command(short_help="Measure and write a recording.")
@click.option(
    "-o",
    "path",
    type=FILE,
    required=True,
    metavar="FILE",
    help="The recording (*.memleak); for several devices the folder for SERIAL.memleak.",
)
@click.option("--all-devices", is_flag=True, help="On every device that adb can use (or repeat --serial).")
@target_options
@tracer_options
@click.option("--keep-stacks", is_flag=True, help="Keep stack bytes, for replay. They can hold private data.")
@click.option("--record-all", "events", is_flag=True, help="Keep every call in the recording.")
@label_option
@click.option(
    "--cache",
    default="",
    metavar="URL",
    help="Store libraries pulled from the device there too, for `fleet report --cache`: a folder, s3://…",
)
@result_options
@common_options
@click.pass_context
def record(
    context: click.Context,
    /,
    path: Path,
    all_devices: bool,
    target: TargetOptions,
    tracing: TracingOptions,
    keep_stacks: bool,
    events: bool,
    labels: tuple[tuple[str, str], ...],
    cache: str,
    result: ResultOptions,
    common: CommonOptions,
) -> int:
    """Measures a process (--pid) or a command (-- CMD) and writes a recording for `report`."""
    invocation: Invocation = context.obj
    serials = every_serial() if all_devices else context.meta[SERIALS]
    if all_devices or len(serials) > 1:
        return record_on_each(invocation, serials, path, force=common.force, quiet=common.quiet)
    check_new(path, common.force)
    command = invocation.command
    refuse_limit_by_run(result.fail_on_growth, None)
    refuse_conflicts(command, target, tracing, events_option="--record-all" if events else "")
    rules = gate_rules(result, common.force)
    measured = measure(
        Measurement(
            options=replace(session_options(command, target, tracing, result.symbols), events=events),
            app=app_request(target),
            target=chosen_machine(command, target),
            tracer=tracer_for(tracing),
            view=View(max_lost=result.max_lost),
            schedule=Schedule(tracing.duration),
            symbol_dirs=result.symbols,
            recording=RecordingPlan(path, keep_stacks, keep_events=events, force=common.force),
            quiet=common.quiet,
            verbose=common.verbose,
            labels=labels,
            share=open_share(cache),
        )
    )
    return conclude(judge(measured.profile, rules), result.gen_suppressions)
