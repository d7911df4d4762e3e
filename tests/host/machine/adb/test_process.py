"""Process facts from a device's shell and agent, compared with this machine's own /proc."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from memleak_android.host.errors import DeviceError, TargetError
from memleak_android.host.machine.adb.process import RemoteProcess
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.machine.target import Answer
from tests.support.fakes.device_here import DeviceHere


@pytest.fixture(scope="module")
def sleeping() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import zlib, time; print(1, flush=True); time.sleep(99)"],
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.read(1)
        yield process.pid
        process.kill()


def test_a_process_looks_the_same_from_afar(sleeping: int) -> None:
    near, far = LocalProcess.open(sleeping), RemoteProcess.open(LocalMachine(), sleeping)
    assert (far.pid, far.name, far.command) == (near.pid, near.name, near.command)
    assert list(far.mappings) == near.mappings()
    assert far.is_64_bit and far.uid == os.geteuid()
    assert far.executable is not None and os.path.realpath(sys.executable) == far.executable.path


def test_objects_come_in_the_linkers_order_and_say_what_they_define(sleeping: int) -> None:
    if os.geteuid():
        pytest.skip("needs root to read the process")
    agent = str(find_binary("memleakd", LocalMachine().arch))
    names = ("malloc", "mmap", "no_such_function")
    objects = RemoteProcess.open(LocalMachine(), sleeping).objects(agent, names)
    near = [one.path for one in LocalProcess.open(sleeping).loaded_objects()]
    assert [one.path for one in objects] == near
    (libc,) = (one for one in objects if one.name.startswith("libc.so"))
    assert libc.defines == {"malloc", "mmap"}
    assert next(one for one in objects if "malloc" in one.defines) == libc


def test_a_missing_process_and_one_that_has_ended() -> None:
    with pytest.raises(TargetError, match="there is no process 4194303 on this machine"):
        RemoteProcess.open(LocalMachine(), 4194303)
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TargetError, match="has ended already"):
            RemoteProcess.open(LocalMachine(), process.pid)


@pytest.mark.parametrize("noise", [b"", b"\xff" * 1000, b"Name:\tx\n", b"\0" * 70000])
def test_half_an_answer_is_an_error_of_the_device(noise: bytes) -> None:
    with pytest.raises(DeviceError, match="device x did not answer about process 7"):
        RemoteProcess.open(DeviceHere(sh=Answer(0, noise, b"")), 7)
