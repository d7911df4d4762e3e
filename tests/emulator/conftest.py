"""The machine that the tests of a session share, and a phone without root for those of a module."""

from collections.abc import Iterator

import pytest

from tests.emulator.phone.boot import booted
from tests.emulator.phone.machine import Machine, Options


@pytest.fixture(scope="session")
def machine(pytestconfig: pytest.Config) -> Iterator[Machine]:
    """A phone with kernel 6.1 and su, its adbd as shell. Skips, with the reason, where it cannot be had."""
    with booted() as started:
        terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:  # there is none in the processes of pytest-xdist
            terminal.write_line(
                f"\n{started.serial}: adb shell answered {started.boot_s:.1f} s after QEMU's start"
            )
        yield started


@pytest.fixture(scope="module")
def stock() -> Iterator[Machine]:
    with booted(Options(build="user")) as started:
        yield started
