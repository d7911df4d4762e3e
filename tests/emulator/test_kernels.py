"""BPF on the other kernels of Android's lines: 5.10 without what the newer object needs, 6.12 with pages of 16 KiB.

The CPU of the latter signs return addresses, and the image's libc has it do so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.apps import ARM64, libraries
from tests.emulator.boot import start
from tests.emulator.debian import Unavailable
from tests.emulator.machine import Machine, Options
from tests.emulator.test_sessions import APP, check_planted, report

pytestmark = [pytest.mark.emulator, pytest.mark.proof]


@pytest.fixture(params=["5.10", "6.12-16k"])
def other_machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Skips, with the reason, where its kernel cannot be had."""
    try:
        machine = start(Options(kernel=request.param))
    except Unavailable as error:
        pytest.skip(str(error))
    yield machine
    machine.stop()


def test_an_app_by_bpf(other_machine: Machine, tmp_path: Path) -> None:
    unstripped = libraries(ARM64, stripped=False).values()
    check_planted(report(other_machine, tmp_path, unstripped, APP, "--tracer", "bpf"))
