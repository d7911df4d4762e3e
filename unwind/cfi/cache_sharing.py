"""Files of caches: shared by a protocol of the caller's, or not at all (Unshared)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")


class Sharing(Protocol):
    """Finds or makes a file.

    path: of the file.
    read: returns the valid contents of the file, else None.
    make: makes the contents, writes them to `path` atomically and returns them; None if that is not possible.
    """

    def find(self, path: Path, read: Callable[[], T | None]) -> T | None:
        """Existing contents, local or shared."""

    def obtain(self, path: Path, read: Callable[[], T | None], make: Callable[[], T | None]) -> T | None:
        """Existing contents, else new ones."""


class Unshared:
    """Processes share the folder only: two that need the same file at once make it twice."""

    def find(self, path: Path, read: Callable[[], T | None]) -> T | None:
        return read()

    def obtain(self, path: Path, read: Callable[[], T | None], make: Callable[[], T | None]) -> T | None:
        found = read()
        return make() if found is None else found
