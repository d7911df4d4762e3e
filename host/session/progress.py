"""Progress on stderr while a session runs or a large recording is analysed."""

import time
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from memleak_android.host.console import say
from memleak_android.host.profile.field_types import BYTE
from memleak_android.host.reports.units import count_text

_LINE_S, _REFRESH_S = 10.0, 0.5
_SILENT_S = 1.0  # what is done within is not worth a line


class _StatusLine:
    """A line that changes on a terminal; elsewhere lines."""

    def __init__(self, is_hidden: bool = False) -> None:
        console = Console(stderr=True)
        self._is_terminal = console.is_terminal
        self._live: Live | None = None
        if console.is_terminal and not is_hidden:
            self._live = Live(console=console, auto_refresh=False, transient=True)
        self._is_started = False

    def _show(self, line: str) -> None:
        if self._live is None:
            say(line)
            return
        if not self._is_started:
            self._live.start()
            self._is_started = True
        self._live.update(Text(line), refresh=True)

    def close(self) -> None:
        if self._live and self._is_started:
            self._live.stop()
            self._is_started = False


class Progress(_StatusLine):
    """A status line on a terminal; elsewhere one line every ten seconds.

    shares_terminal: the target writes to the same terminal, which a status line would disturb.
    """

    def __init__(self, quiet: bool, shares_terminal: bool) -> None:
        super().__init__(quiet or shares_terminal)
        self._is_silent = quiet or (self._is_terminal and shares_terminal)
        self._begin = self._shown = time.monotonic()

    def update(self, status: np.void | None, unit: str) -> None:
        now = time.monotonic()
        if self._is_silent or now - self._shown < (_REFRESH_S if self._live else _LINE_S):
            return
        self._shown = now
        self._show(_status_line(now - self._begin, status, unit))


def _status_line(elapsed_s: float, status: np.void | None, unit: str) -> str:
    if status is None:
        return f"{elapsed_s:.0f} s, waiting for the tracer"
    allocated, freed = int(status["alloc_objects"]), int(status["free_objects"])
    held = int(status["alloc_bytes"]) - int(status["free_bytes"])
    lost = int(status["lost"].sum())
    tail = f", {lost:,} lost" if lost else ""
    blocks = f" in {allocated - freed:,} blocks" if unit == BYTE else ""
    return f"{elapsed_s:.0f} s, {allocated:,} allocations, {count_text(held, unit)} held{blocks}{tail}"


class StepProgress(_StatusLine):
    """How far work on a file is, from its second second on: on a terminal a status line, else a line now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._due = time.monotonic() + (_SILENT_S if self._live else _LINE_S)

    def update(self, what: str, share: float) -> None:
        """As ProgressCallback has it."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + (_REFRESH_S if self._live else _LINE_S)
            self._show(f"{what}: {share:.0%}" if share else what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
