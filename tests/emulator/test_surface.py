"""The Android side of the machine: the answers, words and exit codes that a driver has to cope with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.emulator.apps import APPS, ARM32, BIONIC_APP, abis, installed
from tests.emulator.machine import Machine
from tests.emulator.surface import program

pytestmark = pytest.mark.emulator
LEAKY = "com.example.leaky"
needs_arm32 = pytest.mark.skipif(ARM32 not in abis(), reason=f"{ARM32.compiler} is not installed")


@pytest.fixture
def leaky(machine: Machine) -> Iterator[str]:
    """The pid of the started app; the app is stopped afterwards."""
    assert machine.shell(f"am start -n {LEAKY}/.MainActivity")[0] == 0
    yield machine.wait_for_process(LEAKY)
    machine.shell(f"am force-stop {LEAKY}")


def test_packages_are_listed_with_their_uids(machine: Machine) -> None:
    listed = machine.shell("pm list packages -U")[1].splitlines()
    assert listed == [f"package:{app.package} uid:{app.uid}" for app in installed()]
    assert machine.shell("cmd package list packages rel")[1] == "package:com.example.release\n"


def test_the_path_of_a_package(machine: Machine) -> None:
    code, path, _ = machine.shell(f"pm path {LEAKY}")
    assert code == 0 and re.fullmatch(
        r"package:/data/app/~~\S+==/com\.example\.leaky-\S+==/base\.apk\n", path
    )
    assert machine.shell("pm path no.such.app") == (1, "", "")


@needs_arm32
def test_dumpsys_tells_debuggable_from_release(machine: Machine) -> None:
    debuggable = machine.shell(f"dumpsys package {LEAKY}")[1]
    assert "flags=[ DEBUGGABLE HAS_CODE" in debuggable and "userId=10123" in debuggable
    assert "DEBUGGABLE" not in machine.shell("dumpsys package com.example.release")[1]
    assert "primaryCpuAbi=armeabi-v7a" in machine.shell("dumpsys package com.example.leaky32")[1]
    assert machine.shell("dumpsys package no.such.app")[1] == "Unable to find package: no.such.app\n"


def test_a_started_app_is_a_child_of_the_zygote(machine: Machine, leaky: str) -> None:
    _, row, _ = machine.shell(f"ps -o UID,PPID,ARGS -p {leaky} | tail -1")
    uid, parent, name = row.split()
    assert (uid, name) == ("10123", LEAKY)
    assert machine.shell("pidof zygote64")[1].strip() == parent


def test_starting_it_again_delivers_the_intent(machine: Machine, leaky: str) -> None:
    code, output, error = machine.shell(f"am start -n {LEAKY}/.MainActivity")
    assert (code, output) == (0, f"Starting: Intent {{ cmp={LEAKY}/.MainActivity }}\n")
    assert "has been delivered to currently running top-most instance" in error
    assert machine.shell(f"pidof {LEAKY}")[1].strip() == leaky


def test_a_service_lives_in_its_own_process(machine: Machine, leaky: str) -> None:
    assert machine.shell(f"am startservice -n {LEAKY}/.RemoteService")[0] == 0
    assert machine.wait_for_process(f"{LEAKY}:remote") != leaky
    machine.shell(f"am force-stop {LEAKY}")
    assert machine.shell(f"pidof {LEAKY} {LEAKY}:remote")[1].strip() == ""


@needs_arm32
def test_an_app_of_32_bits_runs(machine: Machine) -> None:
    assert machine.shell("monkey -p com.example.leaky32 -c android.intent.category.LAUNCHER 1")[0] == 0
    pid = machine.wait_for_process("com.example.leaky32")
    machine.shell("am force-stop com.example.leaky32")
    assert pid


@pytest.mark.skipif(
    BIONIC_APP not in installed(), reason="bionic's libc and linker are not beside the repository"
)
def test_an_app_on_bionic_runs_from_its_apk(machine: Machine) -> None:
    assert machine.shell("am start -n com.example.bionic/.MainActivity")[0] == 0
    pid = machine.wait_for_process("com.example.bionic")
    try:
        maps = machine.wait_for_mapping(pid, "base.apk")
        assert "/system/lib64/libc.so" in maps and "/system/bin/linker64" in maps
        offset = next(line.split()[2] for line in maps.splitlines() if line.endswith("base.apk"))
        assert int(offset, 16) > 0 and int(offset, 16) % 16384 == 0
    finally:
        machine.shell("am force-stop com.example.bionic")


def test_an_activity_that_is_not_there(machine: Machine) -> None:
    code, _, error = machine.shell("am start -n no.such.app/.MainActivity")
    assert code == 1
    assert error == "Error type 3\nError: Activity class {no.such.app/.MainActivity} does not exist.\n"
    assert machine.shell("monkey -p no.such.app 1")[:2] == (
        252,
        "** No activities found to run, monkey aborted.\n",
    )


def test_the_shell_may_not_look_into_an_app(machine: Machine, leaky: str) -> None:
    code, _, error = machine.shell(f"cat /proc/{leaky}/maps")
    assert code == 1 and "Permission denied" in error
    assert "/libleaky.so" in machine.wait_for_mapping(leaky, "libleaky.so")
    assert machine.shell(f"run-as {LEAKY} cat /proc/{leaky}/maps")[0] == 0


def test_run_as(machine: Machine) -> None:
    assert machine.shell(f"run-as {LEAKY} sh -c 'id -u; pwd'")[1].split()[0] == "10123"
    assert machine.shell(f"run-as {LEAKY} sh -c 'exit 9'")[0] == 9
    refused = machine.shell("run-as com.example.release id")
    assert refused == (1, "", "run-as: package not debuggable: com.example.release\n")
    assert machine.shell("run-as no.such.app id") == (1, "", "run-as: unknown package: no.such.app\n")


def test_su_of_a_userdebug_build(machine: Machine) -> None:
    assert machine.shell("su 0 id -u") == (0, "0\n", "")
    assert machine.shell("su root sh -c 'exit 4'")[0] == 4
    assert machine.shell("su -c id") == (1, "", "su: invalid uid/gid '-c'\n")


def test_properties(machine: Machine) -> None:
    assert machine.shell("getprop ro.product.cpu.abi")[1] == "arm64-v8a\n"
    assert machine.shell("getprop no.such.property fallback")[1] == "fallback\n"
    assert "[ro.build.type]: [userdebug]\n" in machine.shell("getprop")[1]
    assert machine.shell("setprop debug.memleak 'a b'; getprop debug.memleak")[1] == "a b\n"
    code, _, error = machine.shell("su 0 setprop debug.memleak " + 92 * "x")
    assert code == 1 and error.endswith("is too long, 92 bytes vs a max of 92\n")


def test_the_wrap_property_is_roots_and_the_zygote_heeds_it(machine: Machine) -> None:
    name = f"wrap.{LEAKY}"
    code, _, error = machine.shell(f"setprop {name} X=1")
    assert code == 1
    assert error == f"Failed to set property '{name}' to 'X=1'.\nSee dmesg for error reason.\n"
    machine.shell(f"su 0 setprop {name} MEMLEAK_WRAPPED=1; am start -n {LEAKY}/.MainActivity")
    try:
        pid = machine.wait_for_process(LEAKY)
        assert "MEMLEAK_WRAPPED=1" in machine.root_shell(f"cat /proc/{pid}/environ")[1]
    finally:
        machine.shell(f"am force-stop {LEAKY}; su 0 setprop {name} ''")


def test_the_wrap_script_of_a_debuggable_app_goes_first(machine: Machine) -> None:
    script = f"{Path(APPS[0].library).parent}/wrap.sh"
    machine.root_shell(
        f"printf '#!/system/bin/sh\\nBY_SCRIPT=1 exec \"$@\"\\n' >{script}; chmod 755 {script}"
    )
    try:
        machine.shell(f"am start -n {LEAKY}/.MainActivity")
        pid = machine.wait_for_process(LEAKY)
        assert "BY_SCRIPT=1" in machine.root_shell(f"cat /proc/{pid}/environ")[1]
    finally:
        machine.root_shell(f"am force-stop {LEAKY}; rm {script}")


def test_the_symbols_are_those_of_the_apps(machine: Machine, tmp_path: Path) -> None:
    for app in (app for app in installed() if app.package.startswith(LEAKY)):
        for name in ("libleaky.so", "libmemleak-demo.so"):
            whole = machine.symbols / app.abi.name / name
            pulled = tmp_path / name
            path = app.library.replace("libleaky.so", name)
            assert machine.adb("pull", path, pulled).returncode == 0
            assert build_id(pulled) == build_id(whole)
            assert debugged(whole) and not debugged(pulled)


def build_id(path: Path) -> bytes:
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".note.gnu.build-id")
        assert section is not None
        return bytes(section.data())


def debugged(path: Path) -> bool:
    with path.open("rb") as stream:
        return ELFFile(stream).get_section_by_name(".debug_info") is not None


def test_selinux_says_enforcing(machine: Machine) -> None:
    assert machine.shell("getenforce")[1] == "Enforcing\n"


def test_selinux_can_refuse_bpf_to_root(machine: Machine) -> None:
    loader = "/data/local/tmp/load_bpf"
    assert machine.adb("push", program("load_bpf"), loader).returncode == 0
    assert machine.shell(f"su 0 {loader}") == (0, "", "")
    with machine.refusing("bpf"):
        code, _, error = machine.shell(f"su 0 {loader}")
        assert code == 1 and "Permission denied" in error
        assert "avc:  denied  { prog_load }" in machine.root_shell("dmesg")[1]
    assert machine.shell(f"su 0 {loader}; rm {loader}")[0] == 0


def test_a_service_that_is_not_there(machine: Machine) -> None:
    assert machine.shell("cmd no-such-service") == (20, "", "cmd: Can't find service: no-such-service\n")
