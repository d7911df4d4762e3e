"""`record`: measure and keep the recording; reports are made from it later, elsewhere too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.filters import tracer_for
from memleak_android.host.commands.gating import conclude, gate_rules, refuse_limit_by_run
from memleak_android.host.commands.options import (
    FILE,
    SERIALS,
    common_options,
    label_option,
    result_options,
    target_options,
    tracer_options,
)
from memleak_android.host.commands.record_many import every_serial, record_on_each
from memleak_android.host.commands.results import check_new
from memleak_android.host.commands.target import chosen_target
from memleak_android.host.commands.trace import app_request, session_options
from memleak_android.host.console import Invocation
from memleak_android.host.fleet.published_copies import open_share
from memleak_android.host.profile.gate import judge
from memleak_android.host.session.measure import Measurement, measure
from memleak_android.host.session.session import Schedule


@click.command(short_help="Measure and write a recording.")
@click.option(
    "-o",
    "path",
    type=FILE,
    required=True,
    metavar="FILE",
    help="The recording, by custom *.memleak; of several devices the folder for SERIAL.memleak.",
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
    help="Libraries pulled from the device are put there too, for the workers of `fleet report --cache`: a folder, s3://…",
)
@result_options
@common_options
@click.pass_context
def record(context: click.Context, /, path: Path, all_devices: bool, **given: Any) -> int:
    """Measures a process (--pid) or a command (-- CMD) and writes a recording for `report`."""
    invocation: Invocation = context.obj
    serials = every_serial() if all_devices else context.meta[SERIALS]
    if all_devices or len(serials) > 1:
        return record_on_each(invocation, serials, path, force=given["force"], quiet=given["quiet"])
    check_new(path, given["force"])
    refuse_limit_by_run(given["fail_on_growth"], None)
    rules = gate_rules(given)
    measured = measure(
        Measurement(
            options=session_options(invocation, given),
            app=app_request(given),
            target=chosen_target(invocation, given),
            tracer=tracer_for(given),
            view=View(max_lost=given["max_lost"]),
            schedule=Schedule(given["duration"]),
            symbol_dirs=given["symbols"],
            recording=path,
            keep_stacks=given["keep_stacks"],
            record_all=given["events"],
            force=given["force"],
            quiet=given["quiet"],
            verbose=given["verbose"],
            labels=given["labels"],
            share=open_share(given["cache"]),
        )
    )
    return conclude(judge(measured.profile, rules), given)
