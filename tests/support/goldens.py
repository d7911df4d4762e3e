"""Whole expected outputs as files. UPDATE_GOLDENS=1 in the environment rewrites them, for a reviewer to read."""

import os
from pathlib import Path

GOLDENS = Path(__file__).parent.parent / "host" / "goldens"


def assert_golden(actual: str, name: str) -> None:
    path = GOLDENS / name
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(actual)
    assert actual == path.read_text()
