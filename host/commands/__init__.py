"""The verbs, one thin file each."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from memleak_android.host.reports.base import printable

PROGRAM = "memleak-android"


@dataclass(frozen=True, slots=True)
class Invocation:
    """command: what stands behind `--`; None where there is no `--`. words: what stands before it, as it was given."""

    command: tuple[str, ...] | None
    words: tuple[str, ...] = ()


def say(line: str) -> None:
    """One line of progress or error; names in it cannot steer the terminal. A full disk behind it ends nothing."""
    try:
        print(f"{PROGRAM}: {printable(line)}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        return


def refuse_command(context: click.Context) -> None:
    """For verbs that start nothing."""
    if context.find_object(Invocation) and context.obj.command is not None:
        raise click.UsageError(f"`{context.info_name}` takes no command; write {PROGRAM} -- CMD to trace one")
