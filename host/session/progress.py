"""Progress on stderr while a session runs or a large recording is analysed."""

from __future__ import annotations

import time
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from memleak_android.host.console import say

_LINE_S, _REFRESH_S = 10.0, 0.5
_SILENT_S = 1.0  # what is done within is not worth a line


class Progress:
    """A status line on a terminal; elsewhere one line every ten seconds.

    shares_terminal: the target writes to the same terminal, which a status line would disturb.
    """

    def __init__(self, quiet: bool, shares_terminal: bool) -> None:
        console = Console(stderr=True)
        self._quiet = quiet
        self._live: Live | None = None
        if console.is_terminal and not quiet and not shares_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        self._is_silent = quiet or (console.is_terminal and shares_terminal)
        self._begin = self._shown = time.monotonic()

    def update(self, status: np.void | None) -> None:
        now = time.monotonic()
        if self._is_silent or now - self._shown < (_REFRESH_S if self._live else _LINE_S):
            return
        self._shown = now
        line = _status_line(now - self._begin, status)
        if self._live:
            self._live.update(Text(line), refresh=True)
        else:
            say(line)

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None


def _status_line(elapsed_s: float, status: np.void | None) -> str:
    if status is None:
        return f"{elapsed_s:.0f} s, waiting for the tracer"
    allocated, freed = int(status["alloc_objects"]), int(status["free_objects"])
    held = int(status["alloc_bytes"]) - int(status["free_bytes"])
    lost = int(status["lost"].sum())
    tail = f", {lost:,} lost" if lost else ""
    return f"{elapsed_s:.0f} s, {allocated:,} allocations, {held:,} bytes held in {allocated - freed:,} blocks{tail}"


class StepProgress:
    """How far work on a file is, from its second second on: on a terminal a status line, else a line now and then."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )
        self._is_started = False
        self._due = time.monotonic() + (_SILENT_S if self._live else _LINE_S)

    def update(self, what: str, share: float) -> None:
        """As host/analysis/progress.py has it."""
        now = time.monotonic()
        if now < self._due:
            return
        line = f"{what}: {share:.0%}" if share else what
        if self._live is None:
            self._due = now + _LINE_S
            say(line)
            return
        self._due = now + _REFRESH_S
        if not self._is_started:
            self._live.start()
            self._is_started = True
        self._live.update(Text(line), refresh=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._is_started:
            self._live.stop()
            self._is_started = False
