"""How far work on a large capture has come, told by those who do it to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable

# What is being done, and which share of it (0 to 1) is done.
ProgressCallback = Callable[[str, float], None]


def no_progress(what: str, share: float) -> None:
    pass
