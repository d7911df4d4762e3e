"""`--kernel` on a device: what is refused before anything is brought there."""

from pathlib import Path

import pytest

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.adb.process import running_command
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.android.device import DeviceTracers
from memleak_android.host.tracers.local.kernel import KernelGroup
from tests.support.fakes.device_here import DeviceHere
from tests.support.running_program import another_thread


def test_a_device_without_root(tmp_path: Path) -> None:
    tracers = DeviceTracers(DeviceHere(), tmp_path)
    with pytest.raises(TracerError, match="by root only, and device x has no way to root"):
        tracers.start("auto", SessionOptions(kernel=int(KernelGroup.SLAB)))
    tracers.close()


def test_a_kernel_thread_is_as_good_as_others() -> None:
    comm = Path("/proc/2/comm")
    if not comm.exists() or comm.read_text().strip() != "kthreadd":
        pytest.skip("no kernel threads to be seen here")
    assert running_command(LocalMachine(), 2) == "kthreadd"


def test_a_thread_is_none() -> None:
    with another_thread() as thread, pytest.raises(TargetError, match="is a thread of process"):
        running_command(LocalMachine(), thread)
