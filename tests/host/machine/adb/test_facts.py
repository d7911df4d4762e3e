"""Properties of a device, and of one that is not an Android device."""

import os

import pytest

from memleak_android.host.commands.doctor_device import device_lines
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.adb.facts import parse_facts
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.tracers.android.device import AppRequest

PHONE = """\
ro.product.model=Phone 7\r
ro.build.version.release=14
ro.build.version.sdk=34
ro.build.type=user
ro.product.cpu.abilist=arm64-v8a,armeabi-v7a
ro.product.cpu.abi=arm64-v8a
kernel=6.1.57
machine=aarch64
uid=2000
selinux=Enforcing
mte=yes
tagged_off=0
"""


class Device(LocalMachine):
    serial = "5 \x1b[2J5"
    name = "device 5"
    is_local = False


def test_a_phone() -> None:
    found = parse_facts(PHONE)
    assert (found.model, found.release, found.api_level, found.build_type) == ("Phone 7", "14", 34, "user")
    assert found.abis == ("arm64-v8a", "armeabi-v7a")
    assert (found.kernel, found.machine) == ("6.1.57", "aarch64")
    assert (found.uid, found.selinux) == ("2000", "Enforcing")
    assert (found.has_mte, found.has_pac, found.is_tagging) == (True, False, True)


@pytest.mark.parametrize(
    "text", ["", "\0" * 5000, "=\n==\nro.build.version.sdk=9999999999\n", "kernel=\x1b[2J" * 99]
)
def test_facts_of_a_device_that_is_not_a_phone(text: str) -> None:
    found = parse_facts(text)
    assert (found.api_level, found.abis, found.model) == (0, (), "")
    assert found.kernel.isprintable()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to load BPF programs")
def test_doctor_of_a_device_that_is_this_machine() -> None:
    lines = dict(device_lines(Device(), None, os.getpid(), "auto"))
    assert lines["device"] == "unnamed (5 ?[2J5), API level unknown: is it Android?"
    assert lines["load BPF programs"] == lines["place uprobes"] == "yes"
    assert lines["process"].startswith(f"{os.getpid()} ")
    assert (lines["by bpf"], lines["route"]) == ("open", "bpf")


@pytest.mark.parametrize(
    ("app", "pid", "line"),
    [
        (None, 4194303, "there is no process 4194303 on device 5"),
        (AppRequest("com.example.app"), None, "com.example.app is not installed on device 5"),
    ],
)
def test_doctor_of_what_is_not_there(app: AppRequest | None, pid: int | None, line: str) -> None:
    with pytest.raises(TargetError, match=line):
        list(device_lines(Device(), app, pid, "auto"))
