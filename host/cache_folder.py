"""The cache directory."""

from __future__ import annotations

import os
from pathlib import Path

_NO_HOME = Path(
    "/nonexistent"
)  # Debian's home of user nobody; callers cope with a folder that cannot be made


def cache_base() -> Path:
    """$XDG_CACHE_HOME, or ~/.cache where that is unset or relative (XDG Base Directory Specification).

    A user id without a name, as in containers, has no home: then a folder that does not exist.
    """
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(folder):
        return Path(folder)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return _NO_HOME / ".cache"
