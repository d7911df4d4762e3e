"""Selects a device as adb and scrcpy do: by serial, by kind, or because it is the only one."""

from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.server import READY, DeviceRow

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
