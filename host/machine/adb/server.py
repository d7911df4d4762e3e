"""The adb server: its devices, which of them is meant, and streams to their services. The only module that imports adbutils.

adbutils provides the server's protocol and starts the server. Its shell, sync and stat are not used: they lose exit codes,
truncate without an error and count sizes in 32 bits. The import costs 0.2 s, so it happens only if a device is used.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError

if TYPE_CHECKING:
    import adbutils
from collections.abc import Sequence

READY = "device"  # the state of a usable device
SERVER_TIMEOUT_S = 10.0
_SERVICE_BYTES_MAX = 0xFFFF  # the length is sent as four hexadecimal digits
_DETAIL = re.compile(r"(product|model|device|transport_id):(\S*)")


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One line of `adb devices -l`. state: device, offline, unauthorized, no permissions, recovery …"""

    serial: str
    state: str
    product: str = ""
    model: str = ""
    device: str = ""
    transport_id: str = ""
    bus: str = ""  # usb:1-2; "" for TCP and if the server does not report it

    @property
    def is_usb(self) -> bool:
        """As in scrcpy: emulators and host:port are TCP."""
        is_tcp = self.serial.startswith("emulator-") or ":" in self.serial or "._tcp" in self.serial
        return self.bus.startswith("usb:") or not is_tcp


def list_devices() -> list[DeviceRow]:
    """All devices in the server's order. Starts the server if none runs. Raises DeviceError."""
    short, long = _ask("host:devices"), _ask("host:devices-l")
    return parse_devices(short, long)


def parse_devices(short: str, long: str) -> list[DeviceRow]:
    """Parses host:devices (`SERIAL TAB STATE` lines) and host:devices-l.

    Only the first separates a serial with spaces from its state. A device that appeared between the two has no details.
    """
    details = long.splitlines()
    rows = []
    for line in short.splitlines():
        serial, tab, state = line.rstrip("\r").rpartition("\t")
        if not tab or not serial.strip():
            continue
        rest = _details(details, serial, state)
        found = dict(_DETAIL.findall(rest))
        bus = next((word for word in rest.split() if word.startswith("usb:")), "")
        state = "no permissions" if state.startswith("no permissions") else one_line(state)
        rows.append(DeviceRow(serial, state, **found, bus=bus))
    return rows


def _details(lines: list[str], serial: str, state: str) -> str:
    for line in lines:
        rest = line.removeprefix(serial)
        if rest != line and rest[:1] in (" ", "\t") and rest.lstrip().startswith(state):
            return rest.lstrip().removeprefix(state)
    return ""


def features(row: DeviceRow) -> frozenset[str]:
    """Features that device and server share: shell_v2, cmd, stat_v2 …"""
    with _said_of(row):
        by_serial, number = f"host-serial:{row.serial}", row.transport_id
        prefix = f"host-transport-id:{number}" if number else by_serial
        return frozenset(_ask(f"{prefix}:features").strip().split(","))


def open_service(row: DeviceRow, service: str, timeout_s: float = SERVER_TIMEOUT_S) -> socket.socket:
    """A stream to a service of the device's adbd (`shell,v2,raw:…`). timeout_s: for each step of opening.

    Raises DeviceError: gone, offline, unauthorized, the service refused.
    """
    connection = _connect(timeout_s)
    try:
        with _said_of(row):
            by_serial = f"host:transport:{row.serial}"
            _request(connection, f"host:transport-id:{row.transport_id}" if row.transport_id else by_serial)
            _request(connection, service)
    except BaseException:
        connection.conn.close()
        raise
    stream: socket.socket = connection.conn
    return stream


@contextmanager
def _said_of(row: DeviceRow) -> Iterator[None]:
    """Adds the device's name to the server's messages, which do not always have it."""
    try:
        yield
    except DeviceError as error:
        serial = one_line(row.serial)
        named = error.message if serial in error.message else f"device {serial}: {error.message}"
        raise DeviceError(named, error.hint) from None


def _ask(request: str) -> str:
    connection = _connect(SERVER_TIMEOUT_S)
    try:
        _request(connection, request)
        text: str = _answer(connection.read_string_block, request)
        return text
    finally:
        connection.conn.close()


def _request(connection: adbutils.AdbConnection, request: str) -> None:
    data = request.encode("utf-8", "surrogateescape")
    if len(data) > _SERVICE_BYTES_MAX:
        raise DeviceError(f"a command of {len(data)} bytes is too long for adb", "use shorter paths")
    _answer(lambda: connection.conn.sendall(b"%04x" % len(data) + data), request)
    _answer(connection.check_okay, request)


def _answer(step: Any, request: str) -> Any:
    """The result of `step`; refusals and timeouts of the server become DeviceError."""
    import adbutils

    try:
        return step()
    except (adbutils.AdbTimeout, TimeoutError):
        what = one_line(request.partition(":")[0])
        raise DeviceError(f"the adb server did not answer in time ({what})", "try `adb reconnect`") from None
    except adbutils.AdbError as error:
        raise _refusal(str(error)) from None
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"the adb server sent no answer of its protocol, or closed the connection ({error})", "try again"
        ) from None


def _refusal(text: str) -> DeviceError:
    """The first line of adb's message, with a way out. Its other lines are advice about adb's own options."""
    line = one_line(next(iter(text.strip().splitlines()), "closed")).rstrip(".")
    hints = {
        "unauthorized": "accept this computer in the dialog on the device's screen",
        "offline": "reconnect it, or try `adb reconnect offline`",
        "not found": "see `memleak-android devices`",
        "unknown transport id": "it was unplugged or rebooted: connect it again",
        "more than one": "name one by --serial",
        "Unknown data": "something else listens on adb's port (ANDROID_ADB_SERVER_PORT)",
        "closed": "the device closed the connection: try again",
    }
    hint = next((hint for word, hint in hints.items() if word in line), "see `memleak-android devices`")
    return DeviceError(f"adb: {line}", hint)


def _connect(timeout_s: float) -> adbutils.AdbConnection:
    """Starts a server if none listens (ANDROID_ADB_SERVER_HOST and _PORT as in adb)."""
    import adbutils

    try:
        return adbutils.AdbClient().make_connection(timeout=timeout_s)
    except (adbutils.AdbError, OSError, subprocess.SubprocessError, ValueError) as error:
        raise DeviceError(
            f"no adb server can be reached or started ({one_line(str(error))})",
            "install adb, or start a server by `adb start-server`",
        ) from None


# Advice for each state in which a device is unusable.
_WAY_OUT = {
    "unauthorized": "accept this computer in the dialog on its screen",
    "authorizing": "accept this computer in the dialog on its screen",
    "offline": "connect it again, or try `adb reconnect offline`",
    "connecting": "try again in a moment",
    "no permissions": "allow your user to use it (udev rules), then `adb kill-server`",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """At most one of these is set. serial: a serial, or a USB path (usb:1-2)."""

    serial: str = ""
    usb: bool = False
    tcp: bool = False

    def matches(self, row: DeviceRow) -> bool:
        if self.serial:
            return self.serial in (row.serial, row.bus)
        return not (self.usb and not row.is_usb) and not (self.tcp and row.is_usb)


class SeveralDevices(DeviceError):
    """rows: the matching devices in the server's order."""

    def __init__(self, rows: Sequence[DeviceRow]) -> None:
        super().__init__("more than one device/emulator", "name one by --serial ID, -d (USB) or -e (TCP)")
        self.rows = rows


def select(rows: Sequence[DeviceRow], wish: Wish) -> DeviceRow:
    """The matching device. Raises DeviceError: none, several, or unusable in its state.

    Unusable devices count too, as in adb: another device must not be measured only because the intended one is offline.
    """
    found = [row for row in rows if wish.matches(row)]
    if not found:
        raise _none(rows, wish)
    if len(found) > 1:
        raise SeveralDevices(found)
    (row,) = found
    if row.state != READY:
        hint = _WAY_OUT.get(row.state, "boot it into Android")
        raise DeviceError(f"device {one_line(row.serial)} is {_spoken(row.state)}", hint)
    return row


def _spoken(state: str) -> str:
    """The state in words."""
    if state == "no permissions":
        return "closed to your user"
    return state if state in _WAY_OUT else f"in state {state}"


def _none(rows: Sequence[DeviceRow], wish: Wish) -> DeviceError:
    known = ", ".join(one_line(row.serial) for row in rows[:8])
    if wish.serial:
        message = f"device {one_line(wish.serial)!r} not found"
    elif wish.usb or wish.tcp:
        message = f"no {'USB device' if wish.usb else 'emulator or TCP device'} found"
    else:
        message = "no devices/emulators found"
    if known:
        return DeviceError(message, f"adb knows: {known}")
    return DeviceError(message, "connect one with USB debugging on, or start an emulator")
