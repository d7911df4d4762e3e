"""Device selection: the server's texts, and the rules of adb and scrcpy."""

import pytest

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.selection import SeveralDevices, Wish, select
from memleak_android.host.machine.adb.server import DeviceRow, parse_devices

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
