"""The cache directory."""

import os
from pathlib import Path

# Debian names this home for its user "nobody". It does not exist, and only root can make it.
_NO_HOME = Path("/nonexistent")


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
