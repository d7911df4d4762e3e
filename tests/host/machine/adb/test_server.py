"""Servers that are absent, silent or something else, and what the server says of devices: one clear line each."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb import server as adb

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
