"""How far work on a large capture has come, told by those who do it to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable

# What is being done, and which share of it (0 to 1) is done.
Tell = Callable[[str, float], None]


def tell_nobody(what: str, share: float) -> None:
    pass
