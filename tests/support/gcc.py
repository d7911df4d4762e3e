"""The compiler of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def gcc(*arguments: str | Path, cwd: Path | None = None) -> None:
    """Compiles; skips the test if gcc is not installed."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed (apt-get install gcc)")
    subprocess.run(["gcc", *arguments], cwd=cwd, check=True)
