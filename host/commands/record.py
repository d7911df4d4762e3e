"""`record`: measures and keeps the recording, for reports made later or on another machine."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.conflicts import refuse_conflicts, refuse_limit_by_run
from memleak_android.host.commands.gating import conclude, gate_rules
from memleak_android.host.commands.options import (
    SERIALS,
    CommonOptions,
    ResultOptions,
    StatusOptions,
    TargetOptions,
    TracingOptions,
    flag,
    label_option,
    option,
    takes_options,
)
from memleak_android.host.commands.record_many import every_serial, record_on_each
from memleak_android.host.commands.results import check_new
from memleak_android.host.commands.session_plan import app_request, session_options
from memleak_android.host.commands.target import chosen_machine, measured
from memleak_android.host.commands.values import FILE
from memleak_android.host.console import Invocation
from memleak_android.host.fleet.published_copies import open_share
from memleak_android.host.profile.gate import judge
from memleak_android.host.profile.ownership import read_ownership
from memleak_android.host.session.measure import Measurement, RecordingPlan
from memleak_android.host.session.session import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The recording, or the folder of several."""

    path: Path = option(
        "-o FILE",
        FILE,
        "The recording (*.memleak); for several devices the folder for SERIAL.memleak.",
        required=True,
    )
    all_devices: bool = flag("--all-devices", "On every device that adb can use (or repeat --serial).")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentOptions:
    """Contents of the recording beyond the live table."""

    keep_stacks: bool = flag("--keep-stacks", "Keep stack bytes, for replay. They can hold private data.")
    events: bool = flag("--record-all", "Keep every call in the recording.")
    labels: tuple[tuple[str, str], ...] = label_option()
    cache: str = option(
        "--cache URL",
        None,
        "Store libraries pulled from the device there too, for `fleet report --cache`: a folder, s3://…",
        default="",
    )


@click.command(short_help="Measure and write a recording.")
@takes_options
@click.pass_context
def record(
    context: click.Context,
    /,
    file: FileOptions,
    target: TargetOptions,
    tracing: TracingOptions,
    content: ContentOptions,
    result: ResultOptions,
    status: StatusOptions,
    common: CommonOptions,
) -> int:
    """Measures a process (--pid) or a command (-- CMD) and writes a recording for `report`."""
    invocation: Invocation = context.obj
    serials = every_serial() if file.all_devices else context.meta[SERIALS]
    if file.all_devices or len(serials) > 1:
        return record_on_each(invocation, serials, file.path, force=common.force, quiet=common.quiet)
    check_new(file.path, common.force)
    command = invocation.command
    refuse_limit_by_run(result.fail_on_growth, None)
    refuse_conflicts(command, target, tracing, events_option="--record-all" if content.events else "")
    rules = gate_rules(result, common.force)
    done = measured(
        Measurement(
            options=replace(session_options(command, target, tracing, result.symbols), events=content.events),
            app=app_request(target),
            target=chosen_machine(command, target),
            tracer=tracing.tracer,
            view=View(max_lost=result.max_lost, ownership=read_ownership((), ())),
            schedule=Schedule(tracing.duration),
            symbol_dirs=result.symbols,
            recording=RecordingPlan(
                file.path, content.keep_stacks, keep_events=content.events, force=common.force
            ),
            quiet=common.quiet,
            verbose=common.verbose > 0,
            labels=content.labels,
            share=open_share(content.cache),
        )
    )
    return conclude(judge(done.profile, rules), result, status if command else None)
