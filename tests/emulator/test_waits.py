"""Waits of an attached process on an arm64 kernel: attaching and detaching neither end nor prolong them."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.emulator.phone.apps import FLAGS
from tests.emulator.phone.compiler import compiled
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import run
from tests.emulator.test_whole_stacks import COMPILER
from tests.support.attaching import until
from tests.support.workloads import PROGRAMS

pytestmark = [pytest.mark.emulator, pytest.mark.proof]

FOLDER = "/data/local/tmp/waits"
WAIT_S, BEGUN_S = 40, 22  # an emulator needs ten seconds for a session, or twice as many


@contextmanager
def waiting(machine: Machine, *words: str) -> Iterator[str]:
    """The pid of the program, which has begun to wait."""
    program = compiled(
        "interrupted_waits", COMPILER, [*FLAGS, "-pthread"], [PROGRAMS / "interrupted_waits.c"]
    )
    command = f"{FOLDER}/interrupted_waits {' '.join(words)} > {FOLDER}/out; echo $? > {FOLDER}/code"
    with machine.holding(FOLDER, program):
        machine.shell(f"(setsid sh -c '{command}' < /dev/null > /dev/null 2>&1 &)")
        assert until(lambda: "ready" in machine.shell(f"cat {FOLDER}/out")[1])
        try:
            yield machine.wait_for_process(f"{FOLDER}/interrupted_waits")
        finally:
            machine.shell("pkill -9 interrupted_wait")


def session(machine: Machine, pid: str) -> subprocess.CompletedProcess[str]:
    done = run(machine, "-q", "--tracer", "plt", "--pid", pid, "--duration", "1s")
    assert done.returncode in (0, 6), done.stderr
    return done


def test_none_is_interrupted(machine: Machine) -> None:
    """Each system call in a thread of its own."""
    with waiting(machine, "all") as pid:
        session(machine, pid)
        machine.shell(f"kill {pid}")
        assert until(lambda: machine.shell(f"cat {FOLDER}/code")[1] == "0\n"), machine.shell(
            f"cat {FOLDER}/code"
        )


@pytest.mark.parametrize("wait", ["nanosleep", "futex", "epoll", "sigtimedwait"])
def test_none_is_prolonged(machine: Machine, wait: str) -> None:
    """By a session in the second half of a wait of the only thread, which makes our calls."""
    with waiting(machine, wait, str(WAIT_S * 1000)) as pid:
        time.sleep(BEGUN_S)
        session(machine, pid)
        assert until(lambda: len(machine.shell(f"cat {FOLDER}/out")[1].splitlines()) > 1)
        assert machine.shell(f"cat {FOLDER}/out")[1].splitlines()[1] == "in time"
