"""The machine that the tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.boot import start
from tests.emulator.debian import Unavailable
from tests.emulator.machine import Machine
from tests.emulator.machine import Options as MachineOptions


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A phone with kernel 6.1 and su, its adbd as shell. Skips, with the reason, where it cannot be had."""
    try:
        started = start(MachineOptions())
    except Unavailable as error:
        pytest.skip(str(error))
    yield started
    started.stop()
