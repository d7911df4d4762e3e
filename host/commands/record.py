"""`record`: measure and keep the recording; reports are made from it later, elsewhere too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memleak_android.host.analysis import View
from memleak_android.host.commands import Invocation
from memleak_android.host.commands.measure import Measurement, measure
from memleak_android.host.commands.results import EXIT_CODES, check_new
from memleak_android.host.commands.session import Schedule
from memleak_android.host.commands.target import chosen_target
from memleak_android.host.commands.trace import app_request, session_options
from memleak_android.host.options import FILE, common_options, result_options, target_options, tracer_options


@click.command(short_help="Measure and write a recording.")
@click.option(
    "-o", "path", type=FILE, required=True, metavar="FILE", help="The recording, by custom *.memleak."
)
@target_options
@tracer_options
@click.option("--keep-stacks", is_flag=True, help="Keep stack bytes, for replay. They can hold private data.")
@click.option("--record-all", "events", is_flag=True, help="Keep every call in the recording.")
@result_options
@common_options
@click.pass_obj
def record(invocation: Invocation, /, path: Path, **given: Any) -> int:
    """Measures a process (--pid) or a command (-- CMD) and writes a recording for `report`."""
    check_new(path, given["force"])
    measured = measure(
        Measurement(
            options=session_options(invocation, given),
            app=app_request(given),
            target=chosen_target(invocation, given),
            tracer=given["tracer"],
            view=View(limit=given["fail_on_leak"], max_lost=given["max_lost"]),
            schedule=Schedule(given["duration"]),
            symbol_dirs=given["symbols"],
            recording=path,
            keep_stacks=given["keep_stacks"],
            record_all=given["events"],
            force=given["force"],
            quiet=given["quiet"],
            verbose=given["verbose"],
        )
    )
    return EXIT_CODES[measured.profile.verdict]
