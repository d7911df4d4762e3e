"""How the files of a cache are shared: with nobody (here), or as who gives a cache another Sharing wants it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")


class Sharing(Protocol):
    """Asked before a file is read or made. path: its place. read: what is there and good, else None.

    make: makes it, writes it to `path` whole or not at all, and returns it; None where that is not possible.
    """

    def find(self, path: Path, read: Callable[[], T | None]) -> T | None:
        """What is there already, here or at whom it is shared with."""
        ...

    def obtain(self, path: Path, read: Callable[[], T | None], make: Callable[[], T | None]) -> T | None:
        """What is there already, else what is made of it now."""
        ...


class Unshared:
    """A folder that its users share by its files alone: two who want the same at once make it twice."""

    def find(self, path: Path, read: Callable[[], T | None]) -> T | None:
        return read()

    def obtain(self, path: Path, read: Callable[[], T | None], make: Callable[[], T | None]) -> T | None:
        found = read()
        return make() if found is None else found
