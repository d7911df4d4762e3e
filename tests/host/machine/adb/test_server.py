"""Servers that are absent, silent or something else, and which of their devices is meant."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb import server as adb
from memleak_android.host.machine.adb.server import DeviceRow, SeveralDevices, Wish, parse_devices, select

Answer = Callable[[socket.socket], None]


def patience_for(line: str) -> float:
    """Seconds: few only where nothing is to come."""
    return 0.3 if "in time" in line else 100.0


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], None]]:
    """A server that takes one request and gives a fixed answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(listener.getsockname()[1]))
    monkeypatch.delenv("ANDROID_ADB_SERVER_HOST", raising=False)
    threads = []

    def begin(answer: Answer) -> None:
        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                answer(connection)
                with suppress(ConnectionResetError):
                    connection.recv(1)  # until the other side has had enough

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join(5)
    listener.close()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (b"", "the adb server did not answer in time (host)"),
        (b"OK", "the adb server did not answer in time (host)"),
        (b"HTTP/1.1 400 Bad Request\r\n", "adb: Unknown data: b'HTTP'; something else listens on adb's port"),
        (b"OKAYzzzz", "the adb server sent no answer of its protocol, or closed the connection"),
        (b"OKAY00ffA\tdev", "the adb server did not answer in time (host)"),
        (b"FAIL0006closed", "adb: closed; the device closed the connection: try again"),
        (b"FAIL0011\x1b[2Joh\x07 no\nadvice", "adb: ?[2Joh? no; see `memleak-android devices`"),
    ],
)
def test_servers_that_are_none(
    serve: Callable[[Answer], None], said: bytes, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adb, "SERVER_TIMEOUT_S", patience_for(line))
    serve(lambda connection: connection.sendall(said))
    with pytest.raises(DeviceError) as caught:
        adb.list_devices()
    assert str(caught.value).startswith(line)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("device offline", "device my phone: adb: device offline; reconnect it, or try `adb reconnect offline`"),
        ("device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set\nTry 'adb kill-server'",
         "device my phone: adb: device unauthorized; accept this computer in the dialog on the device's screen"),
        ("device 'my phone' not found", "adb: device 'my phone' not found; see `memleak-android devices`"),
        ("unknown transport id 3",
         "device my phone: adb: unknown transport id 3; it was unplugged or rebooted: connect it again"),
        ("", "device my phone: adb: closed; the device closed the connection: try again"),
        (None, "device my phone: the adb server did not answer in time (host); try `adb reconnect`"),
    ],
)  # fmt: skip
def test_what_is_said_of_one_device_names_it(
    serve: Callable[[Answer], None], said: str | None, line: str
) -> None:
    answer = b"" if said is None else f"FAIL{len(said):04x}{said}".encode()
    serve(lambda connection: connection.sendall(answer))
    with pytest.raises(DeviceError) as caught:
        adb.open_service(adb.DeviceRow("my phone", "device"), "shell,v2,raw:true", patience_for(line))
    assert str(caught.value) == line


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/adb"])
def test_a_server_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    monkeypatch.setenv("ADBUTILS_ADB_PATH", program)
    with pytest.raises(DeviceError, match=r"no adb server can be reached or started .*; install adb"):
        adb.list_devices()


SHORT = (
    "0123456789ABCDEF\tdevice\n"
    "emulator-5554\toffline\n"
    "192.168.1.7:5555\tunauthorized\n"
    "my old phone\tdevice\n"
    "XYZ\tno permissions (user in plugdev group; are your udev rules wrong?); see [http://developer.android.com]\n"
)
LONG = (
    "0123456789ABCDEF       device usb:1-2 product:oriole model:Pixel_6 device:oriole transport_id:3\n"
    "emulator-5554          offline transport_id:1\n"
    "192.168.1.7:5555       unauthorized transport_id:7\n"
    "my old phone           device product:x model:y device:z transport_id:9\n"
    "XYZ                    no permissions (user in plugdev group; are your udev rules wrong?); see [http://developer.android.com] usb:1-4 transport_id:8\n"
)
PHONE, EMULATOR, WIFI, OLD, FORBIDDEN = parse_devices(SHORT, LONG)


def test_fields_of_the_servers_lines() -> None:
    assert DeviceRow("0123456789ABCDEF", "device", "oriole", "Pixel_6", "oriole", "3", "usb:1-2") == PHONE
    assert (OLD.serial, OLD.state, OLD.transport_id) == ("my old phone", "device", "9")
    assert (FORBIDDEN.state, FORBIDDEN.bus) == ("no permissions", "usb:1-4")
    assert [row.is_usb for row in (PHONE, EMULATOR, WIFI, OLD, FORBIDDEN)] == [True, False, False, True, True]


def test_texts_that_are_cut_or_nonsense() -> None:
    for end in range(len(SHORT)):
        assert all(row.serial in SHORT for row in parse_devices(SHORT[:end], LONG))
    assert parse_devices("", LONG) == []
    assert parse_devices("\t\n\tdevice\nno tab\n", LONG) == []
    assert parse_devices("A\tdevice\r\n", "") == [DeviceRow("A", "device")]
    assert parse_devices("A\tde\x1b[31mvice\n", "")[0].state == "de?[31mvice"


@pytest.mark.parametrize(
    ("rows", "wish", "meant"),
    [
        ([PHONE], Wish(), PHONE),
        ([PHONE, OLD], Wish("my old phone"), OLD),
        ([PHONE, OLD], Wish("usb:1-2"), PHONE),
        ([PHONE, EMULATOR], Wish(usb=True), PHONE),
    ],
)
def test_the_one_that_is_meant(rows: list[DeviceRow], wish: Wish, meant: DeviceRow) -> None:
    assert select(rows, wish) is meant


NAME_ONE = "more than one device/emulator; name one by --serial ID, -d (USB) or -e (TCP)"


@pytest.mark.parametrize(
    ("rows", "wish", "line"),
    [
        ([], Wish(), "no devices/emulators found; connect one with USB debugging on, or start an emulator"),
        ([PHONE], Wish("nope"), "device 'nope' not found; adb knows: 0123456789ABCDEF"),
        ([PHONE], Wish(tcp=True), "no emulator or TCP device found; adb knows: 0123456789ABCDEF"),
        ([EMULATOR], Wish(usb=True), "no USB device found; adb knows: emulator-5554"),
        ([WIFI], Wish(), "device 192.168.1.7:5555 is unauthorized; accept this computer in the dialog on its screen"),
        ([EMULATOR], Wish(), "device emulator-5554 is offline; connect it again, or try `adb reconnect offline`"),
        ([FORBIDDEN], Wish(), "device XYZ is closed to your user; allow your user to use it (udev rules), then `adb kill-server`"),
        ([DeviceRow("A", "recovery")], Wish(), "device A is in state recovery; boot it into Android"),
        ([PHONE, EMULATOR], Wish(), NAME_ONE),
        ([PHONE, EMULATOR, OLD], Wish(usb=True), NAME_ONE),
    ],
)  # fmt: skip
def test_refusals(rows: list[DeviceRow], wish: Wish, line: str) -> None:
    with pytest.raises(DeviceError) as caught:
        select(rows, wish)
    assert (str(caught.value), caught.value.exit_code) == (line, 3)
    if isinstance(caught.value, SeveralDevices):
        assert caught.value.rows == [row for row in rows if row.is_usb or not wish.usb]
