"""The machine that the command line means: this one, or a device."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from memleak_android.host.commands.options import TargetOptions
from memleak_android.host.console import one_line, say
from memleak_android.host.machine.adb.device import AdbDevice
from memleak_android.host.machine.adb.selection import SeveralDevices, Wish, select
from memleak_android.host.machine.adb.server import DeviceRow, list_devices
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.target import Target

SERIAL_VARIABLE = "ANDROID_SERIAL"
HEADINGS = ("SERIAL", "STATE", "KIND", "MODEL", "PRODUCT")


def chosen_machine(
    command: Sequence[str] | None, target: TargetOptions, *, needs_process: bool = True
) -> Target:
    """This machine, or a device: where an option or --package means one, or ANDROID_SERIAL is set.

    ANDROID_SERIAL counts for --pid, for the kernel, and where no process is needed. Raises UsageError, DeviceError.
    """
    device = target.device
    if bool(device.serial) + device.usb + device.tcp > 1:
        raise click.UsageError("more than one of -s, -d and -e; name the device by one")
    wish = Wish(device.serial or "", device.usb, device.tcp)
    is_named = target.pid or target.kernel or target.percpu
    is_meant = command is None and (is_named or not needs_process)
    preset = os.environ.get(SERIAL_VARIABLE, "")
    if wish == Wish() and not target.package and not (preset and is_meant):
        return LocalMachine()
    return AdbDevice(_chosen_row(Wish(preset) if wish == Wish() else wish))


def _chosen_row(wish: Wish) -> DeviceRow:
    """Prints the candidates where several match, before it raises DeviceError."""
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
