"""The machine that the command line means: this one, or a device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from memleak_android.host.console import Invocation, one_line, say
from memleak_android.host.machine.adb.device import AdbDevice
from memleak_android.host.machine.adb.selection import SeveralDevices, Wish, select
from memleak_android.host.machine.adb.server import DeviceRow, list_devices
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.target import Target

SERIAL_VARIABLE = "ANDROID_SERIAL"
HEADINGS = ("SERIAL", "STATE", "KIND", "MODEL", "PRODUCT")


def chosen_target(invocation: Invocation, given: Mapping[str, Any], *, needs_process: bool = True) -> Target:
    """A device where a flag or --package means one, or ANDROID_SERIAL does: for --pid, for the kernel, and for who
    needs no process.

    Raises UsageError, DeviceError.
    """
    wish = device_wish(given)
    is_named = given["pid"] or given.get("kernel") or given.get("percpu")
    is_meant = invocation.command is None and (is_named or not needs_process)
    is_preset = bool(os.environ.get(SERIAL_VARIABLE)) and is_meant
    if wish == Wish() and not given["package"] and not is_preset:
        return LocalMachine()
    return AdbDevice(chosen_row(wish))


def device_wish(given: Mapping[str, Any]) -> Wish:
    """Raises UsageError where -s, -d and -e contradict each other."""
    wish = Wish(given["serial"] or "", given["usb"], given["tcp"])
    if bool(wish.serial) + wish.usb + wish.tcp > 1:
        raise click.UsageError("more than one of -s, -d and -e; name the device by one")
    return wish


def chosen_row(wish: Wish) -> DeviceRow:
    """ANDROID_SERIAL counts where nothing else is said. Several that match are shown before DeviceError is raised."""
    if wish == Wish():
        wish = Wish(os.environ.get(SERIAL_VARIABLE, ""))
    try:
        return select(list_devices(), wish)
    except SeveralDevices as error:
        for line in table(error.rows):
            say(line)
        raise


def table(rows: Sequence[DeviceRow]) -> list[str]:
    """Aligned lines, the headings first."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _cells(row: DeviceRow) -> tuple[str, ...]:
    kind = row.bus or ("usb" if row.is_usb else "tcp")
    return tuple(one_line(cell) for cell in (row.serial, row.state, kind, row.model, row.product))
