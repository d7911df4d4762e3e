"""The verbs, one thin file each."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

PROGRAM = "memleak-android"


@dataclass(frozen=True, slots=True)
class Invocation:
    """What stands behind `--`; None where there is no `--`."""

    command: tuple[str, ...] | None


def say(line: str) -> None:
    """One line of progress or error."""
    print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


def refuse_command(context: click.Context) -> None:
    """For verbs that start nothing."""
    if context.find_object(Invocation) and context.obj.command is not None:
        raise click.UsageError(f"`{context.info_name}` takes no command; write {PROGRAM} -- CMD to trace one")
