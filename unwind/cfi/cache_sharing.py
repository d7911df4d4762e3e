"""Files of caches: shared by a protocol of the caller's, or not at all (Unshared)."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")


def file_digest(data: memoryview) -> bytes:
    """SHA-256 of all bytes of a file."""
    return hashlib.sha256(data).digest()


def entry_path(folder: Path, build_id: str, digest: bytes, suffix: str) -> Path:
    """The path of a cache's entry, which belongs to the very bytes it was made from.

    build_id: for readers of the folder only, because any file may bear another one's. In hex; "" = none.
    digest: of all bytes that the entry depends on.
    """
    return folder / f"{build_id[:40] or 'unnamed'}-{digest.hex()[:32]}{suffix}"


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
