"""`--live` on the command line: its requirements, the file for the command's output, the folder that `s` writes."""

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from memleak_android.host.commands.conflicts import refuse_first
from memleak_android.host.commands.options import TargetOptions
from memleak_android.host.commands.results import write_file
from memleak_android.host.console import printable, say
from memleak_android.host.errors import UsageError
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.timeline import Timeline
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.session.live_view import LivePlan
from memleak_android.host.session.live_window import check_terminal
from memleak_android.unwind.file_writing import create, make_new_folder, remove, temporary_file

SAVED_FORMATS = ("text", "json", "html")
OUTPUT_NAME = "output.txt"


def check_live(*, quiet: bool, count: int | None, events: bool) -> None:
    """Raises UsageError for options that --live excludes, and without a terminal to draw on."""
    refuse_first("--live", {"--quiet": quiet, "--count": count, "--trace": events})
    if os.isatty(2) and (kind := os.environ.get("TERM", "")) in ("", "dumb"):
        raise UsageError(
            f"--live draws on a terminal, and TERM is {kind or 'not set'}",
            "set it (TERM=xterm), or use --interval 5s",
        )
    check_terminal()


def live_plan(
    command: Sequence[str] | None,
    target: TargetOptions,
    folder: Path | None,
    options: ReportOptions,
    is_local: bool,
    timeline: Timeline,
) -> LivePlan:
    """Makes the file for the command's output: in the folder of -o, else a temporary one."""

    def save(profile: Profile) -> str:
        saved = _new_folder(folder or Path())
        for name in SAVED_FORMATS:
            write_file(saved / f"report.{FORMATS[name].suffix}", FORMATS[name], profile, options)
        return f"saved in {saved}"

    return LivePlan(
        target=_target_text(command, target),
        output=_output_file(folder) if command else None,
        is_local=is_local,
        can_scan=not target.kernel and not target.every_process,
        save=save,
        seen=timeline.add,
    )


def _target_text(command: Sequence[str] | None, target: TargetOptions) -> str:
    device = f" on {target.device.serial}" if target.device.serial else ""
    if command:
        return printable(shlex.join(command)) + device
    if target.package:
        return printable(target.package) + device
    return f"pid {target.pid}{device}" if target.pid is not None else "the kernel"


def _output_file(folder: Path | None) -> Path:
    if folder is not None:
        path = folder / OUTPUT_NAME
        descriptor = create(path, force=True)
    else:
        descriptor, path = temporary_file("memleak-android-", f".{OUTPUT_NAME}")
    os.close(descriptor)
    return path


def _new_folder(parent: Path) -> Path:
    """live-DATE-TIME, with a number where that exists."""
    stem = f"live-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            make_new_folder(folder)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(parent / stem)


def say_output(output: Path) -> None:
    """Prints where the command's output is; removes an empty file."""
    try:
        size = output.stat().st_size
    except OSError:
        return
    if size:
        say(f"the output of the command is in {output} ({size:,} bytes)")
    else:
        remove(output)
