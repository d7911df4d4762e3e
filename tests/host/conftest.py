"""The verb `unwind`, run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from memleak_android.host.cli import run
from tests.support.command_line import Finished, Unwind


@pytest.fixture
def unwind(capfd: pytest.CaptureFixture[str]) -> Unwind:
    def run_it(folder: Path, *options: str) -> Finished:
        code = run(["unwind", str(folder), *options])
        out, err = capfd.readouterr()
        return Finished(code, out, err)

    return run_it
