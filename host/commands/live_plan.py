"""`--live` on the command line: what it needs, where the command's output goes, where `s` writes."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from memleak_android.host.commands.results import write_file
from memleak_android.host.console import Invocation, printable, say
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.timeline import Timeline
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.session.live_view import LivePlan
from memleak_android.host.session.live_window import check_terminal

SAVED_FORMATS = ("text", "json", "html")
OUTPUT_NAME = "output.txt"


def check_live(given: dict[str, Any]) -> None:
    """Raises UsageError for what does not go with it, and where there is nothing to draw on."""
    other = next(
        (f"--{name}" for name in ("quiet", "count") if given[name]), "--trace" if given["events"] else ""
    )
    if other:
        raise click.UsageError(f"--live with {other}; leave one of them away")
    check_terminal()


def live_plan(invocation: Invocation, given: dict[str, Any], is_local: bool, timeline: Timeline) -> LivePlan:
    """The file for the command's output is made here: in the folder of -o, else a temporary one."""
    folder: Path | None = given["folder"]
    options = ReportOptions(given["top"], given["show_allocs"], given["sort"], given["combined_only"])

    def save(profile: Profile) -> str:
        place = _new_folder(folder or Path())
        for name in SAVED_FORMATS:
            write_file(place / f"report.{FORMATS[name].suffix}", FORMATS[name], profile, options)
        return f"saved in {place}"

    return LivePlan(
        target=_target_words(invocation, given),
        output=_output_file(folder) if invocation.command else None,
        is_local=is_local,
        can_look=not given.get("kernel") and not given["every_process"],
        save=save,
        seen=timeline.add,
    )


def _target_words(invocation: Invocation, given: dict[str, Any]) -> str:
    device = f" on {given['serial']}" if given["serial"] else ""
    if invocation.command:
        return printable(shlex.join(invocation.command)) + device
    if given["package"]:
        return printable(given["package"]) + device
    return f"pid {given['pid']}{device}" if given["pid"] is not None else "the kernel"


def _output_file(folder: Path | None) -> Path:
    if folder is not None:
        (folder / OUTPUT_NAME).write_bytes(b"")
        return folder / OUTPUT_NAME
    descriptor, name = tempfile.mkstemp(prefix="memleak-android-", suffix=f".{OUTPUT_NAME}")
    os.close(descriptor)
    return Path(name)


def _new_folder(parent: Path) -> Path:
    """live-DATE-TIME, with a number where there is one already."""
    stem = f"live-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        place = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        return place
    raise FileExistsError(parent / stem)


def tell_output(output: Path) -> None:
    """At the end: where it is; an empty file goes."""
    try:
        size = output.stat().st_size
    except OSError:
        return
    if size:
        say(f"what the command wrote on the terminal is in {output} ({size:,} bytes)")
    else:
        output.unlink(missing_ok=True)
