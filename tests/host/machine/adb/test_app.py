"""Android's answers about an app and the properties of a device, recorded and hostile."""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from memleak_android.host.commands.doctor import device_lines
from memleak_android.host.errors import DeviceError, TargetError, UsageError
from memleak_android.host.machine.adb.app import (
    App,
    AppProcess,
    check_package,
    choose_process,
    find_app,
    find_zygote,
    launch,
    parse_app,
    parse_processes,
    running_processes,
    wait_for_process,
)
from memleak_android.host.machine.adb.facts import parse_facts
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.tracers.android.device import AppRequest
from tests.support.fakes.device_here import DeviceHere

# `dumpsys package`, shortened: an overlay first, then the package, then the copy of it in the system image.
DUMP_13 = """\
Activity Resolver Table:
  Non-Data Actions:
      android.intent.action.MAIN:
        8f1c0d3 com.example.app/.Main filter 4a1b210

Packages:
  Package [com.example.app.debug] (1111111):
    appId=10777
    pkgFlags=[ SYSTEM ]
  Package [com.example.app] (2b3c4d5):
    appId=10123
    pkg=Package{5d4c3b2 com.example.app}
    codePath=/data/app/~~abc==/com.example.app-xyz==
    primaryCpuAbi=arm64-v8a
    secondaryCpuAbi=null
    versionCode=1 minSdk=23 targetSdk=33
    flags=[ DEBUGGABLE HAS_CODE ALLOW_CLEAR_USER_DATA ]
    privateFlags=[ PRIVATE_FLAG_ACTIVITIES_RESIZE_MODE_RESIZEABLE PROFILEABLE_BY_SHELL ]
    pkgFlags=[ DEBUGGABLE HAS_CODE ]
  Package [com.example.other] (9999999):
    appId=10500
Hidden system packages:
  Package [com.example.app] (3c2d1e0):
    appId=10999
"""
DUMP_9 = """\
Packages:
  Package [com.example.app] (2b3c4d5):
    userId=10123
    flags=[ HAS_CODE ]
    primaryCpuAbi=null
"""
PS = """\
  PID   UID NAME
    1     0 init
  320     0 zygote64
 4711 10123 com.example.app
 4712 10123 com.example.app:remote
 4713 10123 org.other.name
 4714 99001 com.example.app:sandbox
 4715 10124 com.example.app
 4716 1010123 com.example.app
 4717 10124 com.example.app:evil
    x     y garbage
99999999999 10123 com.example.app
"""


APP = App("com.example.app", 0, 10123, True, False, "arm64-v8a", ("/data/app/base.apk",), "")
AS_USER_10 = replace(APP, user=10)


def test_the_packages_own_section_counts() -> None:
    found = parse_app("com.example.app", 0, ["/data/app/base.apk"], DUMP_13, "uid=10123(u0_a123) gid=10123")
    assert found == replace(APP, is_profileable=True, version_code=1)
    assert (found.uid, found.as_user.words) == (10123, ["run-as", "com.example.app"])


def test_an_older_dump_of_another_user() -> None:
    refusal = "run-as: package not debuggable: com.example.app"
    found = parse_app("com.example.app", 10, [], DUMP_9, f"{refusal}\n")
    assert found == replace(AS_USER_10, is_debuggable=False, abi="", paths=(), run_as_refusal=refusal)
    assert found.uid == 1010123 and found.as_user.words == ["run-as", "com.example.app", "--user", "10"]


@pytest.mark.parametrize(
    "dump", ["", "Unable to find package: com.example.app\n", "Package [com.example.app]", "\0" * 99]
)
def test_a_dump_that_tells_nothing(dump: str) -> None:
    found = parse_app("com.example.app", 0, [], dump, "")
    assert (found.app_id, found.abi, found.run_as_refusal) == (None, "", "no answer")


def test_processes_are_taken_by_uid_and_name() -> None:
    found = running_processes(DeviceHere(ps=PS), APP)
    assert [one.pid for one in found] == [4711, 4712, 4713, 4714]
    assert [one.name for one in found[1:3]] == ["com.example.app:remote", "org.other.name"]
    assert [one.pid for one in running_processes(DeviceHere(ps=PS), AS_USER_10)] == [4716]


def test_the_process_that_is_meant() -> None:
    processes = [one for one in parse_processes(PS) if one.uid in (10123, 99001)]
    for name, pid in ((None, 4711), (":remote", 4712), ("org.other.name", 4713), ("com.example.app", 4711)):
        assert choose_process(APP, processes, name).pid == pid
    assert choose_process(APP, processes[1:2], None).pid == 4712


@pytest.mark.parametrize(
    ("processes", "name", "line"),
    [
        ((), None, "com.example.app is not running; start it, or use --launch or --wait"),
        (("com.example.app",), ":gone", "com.example.app has no process com.example.app:gone; it runs com.example.app (pid 0)"),
        (("com.example.app:a", "com.example.app:b"), None,
         "the main process of com.example.app is not running; use --process NAME: com.example.app:a (pid 0), com.example.app:b (pid 1)"),
        (("com.example.app",) * 2, None,
         "2 processes are called com.example.app: com.example.app (pid 0), com.example.app (pid 1); name one by --pid"),
    ],
)  # fmt: skip
def test_no_process_is_guessed(processes: Sequence[str], name: str | None, line: str) -> None:
    with pytest.raises(TargetError) as caught:
        choose_process(APP, [AppProcess(i, 10123, one) for i, one in enumerate(processes)], name)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    "package", ["", "a;reboot", "$(id)", "a b", "com.example/../x", "a" * 300, "-p", "a\n", "1a"]
)
def test_malformed_package_names_are_never_sent(package: str) -> None:
    phone = DeviceHere()
    with pytest.raises(UsageError, match="is not a package name"):
        find_app(phone, package)
    assert phone.asked == []
    assert check_package("android") == "android"


def test_a_package_that_is_not_installed() -> None:
    phone = DeviceHere(pm="<MARK>Unable to find package<MARK>run-as: unknown package<MARK>")
    with pytest.raises(TargetError, match=r"^com.example.app is not installed on device x; install it"):
        find_app(phone, "com.example.app")


@pytest.mark.parametrize("said", ["", "package:/a.apk\n<MARK>", "<MARK>" * 9])
def test_half_an_answer(said: str) -> None:
    refusal = r"device x did not answer about com.example.app: incomplete answer"
    with pytest.raises(DeviceError, match=refusal):
        find_app(DeviceHere(pm=said), "com.example.app")


@pytest.mark.parametrize(("user", "words"), [(0, ""), (10, "--user 10")])
def test_split_packages_and_carriage_returns(user: int, words: str) -> None:
    """run-as names other users only: its option is younger than run-as."""
    paths = ("/data/app/x/base.apk", "/data/app/x/split_config.arm64_v8a.apk")
    said = "".join(f"package:{path}\r\n" for path in paths) + f"<MARK>{DUMP_9}<MARK>uid=1<MARK>"
    phone = DeviceHere(pm=said)
    assert find_app(phone, "com.example.app", user).paths == paths
    assert phone.asked[0][4:7] == ["com.example.app", str(user), words]


@pytest.mark.parametrize("app", [APP, AS_USER_10])
def test_an_app_is_started_by_its_launcher_activity(app: App) -> None:
    phone = DeviceHere(
        cmd="priority=0 preferredOrder=0\ncom.example.app/.Main\n", am="Starting: Intent { … }\n"
    )
    launch(phone, app)
    user = ["--user", str(app.user)]
    assert phone.asked[0][4:6] == user
    assert phone.asked[1:] == [
        ["am", "force-stop", *user, "com.example.app"],
        ["am", "start", *user, "-n", "com.example.app/.Main"],
    ]


def test_an_app_that_cannot_be_started() -> None:
    said = "** No activities found to run, monkey aborted."
    phone = DeviceHere(cmd="com.example.app/.Main; reboot", am="", monkey=said)
    with pytest.raises(TargetError, match=r"com.example.app could not be started: .* No activities found"):
        launch(phone, APP)
    assert phone.asked[-1][:3] == ["monkey", "-p", "com.example.app"]


def test_what_starts_an_app_without_an_activity_knows_no_users() -> None:
    phone = DeviceHere(cmd="No activity found\n")
    with pytest.raises(TargetError, match=r"com\.example\.app of user 10 has no activity to start"):
        launch(phone, AS_USER_10)
    assert len(phone.asked) == 1, "and it is not ended for that"


def test_waiting_ends() -> None:
    with pytest.raises(TargetError, match="is not running"):
        wait_for_process(DeviceHere(ps=""), APP, None, 0.0)
    assert wait_for_process(DeviceHere(ps=PS), APP, ":remote", None).pid == 4712


ZYGOTES = "320 0 zygote64\n321 0 zygote\n322 0 zygote64_other\n400 10200 zygote64\n"


@pytest.mark.parametrize(
    ("processes", "parent", "pid"),
    [
        (ZYGOTES, "", 320),
        (ZYGOTES + "4711 10123 com.example.app\n", "PPid:\t322\n", 322),
        (ZYGOTES + "4711 10123 com.example.app\n", "PPid:\t1\n", 320),
    ],
)
def test_the_zygote_is_the_parent_where_there_is_one(processes: str, parent: str, pid: int) -> None:
    assert find_zygote(DeviceHere(ps=processes, grep=parent), APP).pid == pid


def test_a_device_without_a_zygote() -> None:
    with pytest.raises(TargetError, match="device x has no zygote64 to start an app from"):
        find_zygote(DeviceHere(ps="400 10200 zygote64\n"), APP)


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
