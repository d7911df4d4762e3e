"""A device through the real adb server: what is asked of it, and what it answers when it is broken or hostile."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.errors import ConnectionCut, DeviceError
from memleak_android.host.machine.adb.device import AdbDevice, RootRoute
from memleak_android.host.machine.adb.server import list_devices
from memleak_android.host.machine.target import AppUser
from tests.support.fakes.adb_server import adb, connected
from tests.support.fakes.adbd import FakeDevice

pytestmark = pytest.mark.usefixtures("adb_server")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, adb_server: None) -> Iterator[FakeDevice]:
    device = FakeDevice(tmp_path_factory.mktemp("device"))
    with connected(device):
        yield device


@pytest.fixture
def device(fake: FakeDevice) -> Iterator[AdbDevice]:
    """Without faults, and without what an earlier test has learnt."""
    yield AdbDevice(next(row for row in list_devices() if row.serial == fake.serial))
    fake.faults = type(fake.faults)()
    for program in (fake.folder / "bin").iterdir():
        program.unlink()


def test_streams_and_exit_status_stay_apart(device: AdbDevice) -> None:
    answer = device.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (answer.code, answer.out, answer.err) == (7, b"out\n", b"err\n")
    assert device.run(["sh", "-c", "kill -9 $$"]).code == 128 + 9


@pytest.mark.parametrize(
    "word",
    ["two words", "$(touch hit)", "a'b\"c", "`id`", "*", "line\nline", "é\udcff", "", "-n", "; exit 3"],
)
def test_every_argument_arrives_as_it_is(device: AdbDevice, word: str) -> None:
    answer = device.run(["printf", "<%s>", word])
    assert answer.out == b"<" + os.fsencode(word) + b">"


def test_input_larger_than_every_buffer_comes_back(device: AdbDevice) -> None:
    data = os.urandom(3 << 20)
    assert device.run(["cat"], stdin=data).out == data


def test_two_pulls_at_once(device: AdbDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins and ends while the first is under way, which then goes on."""
    into, turns = tmp_path / "copy", iter((True, False))

    def contents(*_: object) -> Iterator[bytes]:
        yield b"first half, "
        if next(turns):
            device.pull("/same", into)
            assert into.read_bytes() == b"first half, second half"
        yield b"second half"

    monkeypatch.setattr(AdbDevice, "_contents", contents)
    device.pull("/same", into)
    assert into.read_bytes() == b"first half, second half"
    assert list(tmp_path.iterdir()) == [into]


def test_files_are_read_and_pulled_byte_by_byte(device: AdbDevice, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "with space").write_bytes(data)
    assert device.read_file(f"{tmp_path}/with space") == data
    device.pull(f"{tmp_path}/with space", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data


def test_a_file_that_is_not_there_leaves_nothing(device: AdbDevice, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        device.read_file("/no such file")
    with pytest.raises(IsADirectoryError):
        device.pull("/proc", tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_a_pull_that_is_cut_leaves_nothing(fake: FakeDevice, device: AdbDevice, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(1 << 20))
    fake.faults.cut_after_bytes = 100_000
    with pytest.raises(ConnectionCut, match="was cut"):
        device.pull(f"{tmp_path}/big", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["big"]
    for verb in ("disconnect", "connect"):
        adb(verb, fake.serial)
    assert any(row.serial == fake.serial and row.state == "device" for row in list_devices())


def test_a_file_that_never_ends_does_not_fill_the_disk(
    device: AdbDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memleak_android.host.machine.target.PULL_BYTES_MAX", 1_000_000)
    with pytest.raises(OSError, match="it has more than 1000000 bytes"):
        device.pull("/dev/zero", tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_a_program_that_hangs_is_given_up(fake: FakeDevice, device: AdbDevice) -> None:
    """Or whose output ends nowhere, without an exit status."""
    for words in (["sleep", "1000"], ["echo", "x"]):
        with pytest.raises(DeviceError, match=rf"did not answer {words[0]} within 0\.3 s"):
            device.run(words, timeout_s=0.3)
        fake.faults.is_stalled = True


def test_endless_output_is_cut_off(device: AdbDevice) -> None:
    with pytest.raises(DeviceError, match="answered yes with more than 100000 bytes"):
        device.run(["yes"], limit_bytes=100_000)


def test_what_it_says_reaches_no_terminal(device: AdbDevice) -> None:
    answer = device.run(["printf", r"first\n\033]0;owned\007last\r\n%01000d\n", "0"])
    assert answer.out.startswith(b"first\n\x1b]0;")
    said = device.run(["sh", "-c", r"printf 'first\n\033]0;owned\007last\r\n' >&2"])
    assert said.complaint == "?]0;owned?last"


@pytest.mark.parametrize(
    ("su", "route"),
    [
        ('[ "$1" = 0 ] && shift && exec "$@"; echo "su: invalid uid/gid" >&2; exit 1', RootRoute.SU_USER),
        ('[ "$1" = -c ] && exec sh -c "$2"; shift; exec sh "$@"', RootRoute.SU_COMMAND),
        ("echo 'Permission denied' >&2; exit 13", RootRoute.NONE),
        ("echo 0, or so; exit 0", RootRoute.NONE),
    ],
)
def test_ways_to_root(fake: FakeDevice, device: AdbDevice, su: str, route: RootRoute) -> None:
    """id says 2000 unless su has begun it, as on a phone."""
    fake.add_program("id", 'if [ "$AS_ROOT" ]; then echo 0; else echo 2000; fi')
    fake.add_program("su", f"export AS_ROOT=1\n{su}")
    assert device.root_route is route
    if route is RootRoute.NONE:
        with pytest.raises(DeviceError, match="has no root"):
            device.run(["id", "-u"], as_root=True)
    else:
        assert device.run(["printf", "%s %s", "a b", "$(id -u)"], as_root=True).out == b"a b $(id -u)"


def test_an_unanswered_request_for_root(
    fake: FakeDevice, device: AdbDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_program("su", "sleep 60")
    monkeypatch.setattr("memleak_android.host.machine.adb.device.PROBE_TIMEOUT_S", 0.3)
    with pytest.raises(DeviceError, match=r"did not answer su within 0\.3 s; accept the request for root"):
        _ = device.root_route


def test_as_the_app(fake: FakeDevice, device: AdbDevice) -> None:
    fake.add_program("run-as", 'echo "as $1"; shift; exec "$@"')
    answer = device.run(["echo", "a  b"], run_as=AppUser("com.example.app;reboot"))
    assert answer.out == b"as com.example.app;reboot\na  b\n"


def test_a_device_that_takes_its_time(
    fake: FakeDevice, device: AdbDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.faults.delay_s = 0.3
    assert device.run(["echo", "x"]).out == b"x\n"
    monkeypatch.setattr("memleak_android.host.machine.adb.device.OPEN_TIMEOUT_S", 0.1)
    with pytest.raises(DeviceError, match="the adb server did not answer in time"):
        device.run(["echo", "x"])


def test_carriage_returns_change_nothing(fake: FakeDevice, device: AdbDevice) -> None:
    fake.faults.crlf = True
    fake.add_program("id", "echo 2000")
    fake.add_program("su", '[ "$1" = 0 ] && echo 0')
    assert device.root_route is RootRoute.SU_USER
    assert device.arch


@pytest.mark.parametrize("said", ["riscv64", "", "x86_64 x86_64", r"\033[2J"])
def test_machines_that_are_not_known(fake: FakeDevice, device: AdbDevice, said: str) -> None:
    fake.add_program("uname", f"printf '{said}\\n'")
    with pytest.raises(DeviceError, match="unsupported machine") as caught:
        _ = device.arch
    assert str(caught.value).isprintable()


def test_a_command_that_is_too_long_for_adb(device: AdbDevice) -> None:
    with pytest.raises(DeviceError, match="too long for adb"):
        device.run(["echo", "x" * 70_000])
