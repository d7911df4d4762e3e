"""Where what may be lost is kept."""

from __future__ import annotations

import os
from pathlib import Path

_OF_NOBODY = Path(
    "/nonexistent"
)  # Debian's home of nobody: cannot be made, which every user of a cache lives with


def cache_base() -> Path:
    """$XDG_CACHE_HOME, or ~/.cache where that is unset or relative (XDG Base Directory Specification).

    A user id that has no name, as containers give one, has no home either: a folder that is not there.
    """
    told = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(told):
        return Path(told)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return _OF_NOBODY / ".cache"
