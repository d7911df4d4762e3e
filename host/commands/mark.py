"""`mark NAME`: puts down a moment in a session that runs."""

import click

from memleak_android.host.console import refuse_command
from memleak_android.host.errors import UsageError
from memleak_android.host.session.marks import NAME_BYTES_MAX, running_sessions, set_mark


@click.command(short_help="Put down a moment in a running session: what grows from one to the next?")
@click.argument("name", metavar="NAME")
@click.option("--session", type=click.IntRange(1), metavar="PID", help="Of several: its process id.")
@click.pass_context
def mark(context: click.Context, /, name: str, session: int | None) -> int:
    """Has a running session of this user take a snapshot, and returns when it is taken.

    With five marks of one name or more, growth is judged from mark to mark.
    """
    refuse_command(context)
    if not name or len(name.encode()) >= NAME_BYTES_MAX:
        raise UsageError("the name is empty or too long", f"at most {NAME_BYTES_MAX - 1} bytes")
    running = running_sessions()
    if session is None and len(running) > 1:
        raise UsageError(f"{len(running)} sessions run", f"--session {' or '.join(map(str, running))}")
    if not running or (session is not None and session not in running):
        which = f"session {session} does not run" if session else "no session runs"
        raise UsageError(f"{which}, or none of this user's", "start one first")
    number = set_mark(running[session or next(iter(running))], name)
    click.echo(f"{name} {number}")
    return 0
