"""Lines of progress and errors on standard error, and names that cannot steer the terminal they are shown on."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import click

PROGRAM = "memleak-android"
LINE_CHARACTERS_MAX = 300  # of one_line()


def printable(text: str) -> str:
    """The text with everything that repr() would escape as \\xNN, \\uNNNN or \\UNNNNNNNN.

    Names come from untrusted files and processes. They must not steer the terminal (controls), reorder the line
    (UAX #9: bidirectional formatting) or imitate another name (other format characters, unassigned ones, spaces but
    U+0020). Lone surrogates are the bytes of a path that is not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """Device output as one bounded line: "?" for control characters, cut at LINE_CHARACTERS_MAX."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: LINE_CHARACTERS_MAX + 1])
    return shown if len(shown) <= LINE_CHARACTERS_MAX else f"{shown[: LINE_CHARACTERS_MAX - 1]}…"


@dataclass(frozen=True, slots=True)
class Invocation:
    """command: the words behind `--`, None without `--`. words: those before it, unchanged."""

    command: tuple[str, ...] | None
    words: tuple[str, ...] = ()


def say(line: str) -> None:
    """One line of progress or error; names in it cannot steer the terminal. A full disk is ignored."""
    try:
        print(f"{PROGRAM}: {printable(line)}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        return


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Rows as lines of columns. left: the columns that are aligned to the left, the others are to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        for row in rows
    )
    return ["  ".join(row).rstrip() for row in padded]


def refuse_command(context: click.Context) -> None:
    """For verbs that start nothing."""
    if context.find_object(Invocation) and context.obj.command is not None:
        raise click.UsageError(f"`{context.info_name}` takes no command; write {PROGRAM} -- CMD to trace one")
