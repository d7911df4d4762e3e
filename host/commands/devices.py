"""`devices`: what can be named by --serial."""

import json

import click

from memleak_android.host.commands.target import table
from memleak_android.host.console import refuse_command
from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.server import READY, DeviceRow, list_devices

SCHEMA = "memleak-android/devices/1"


@click.command(short_help="List the devices that adb knows.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("-v", "--verbose", is_flag=True, hidden=True)  # as every verb
@click.pass_context
def devices(context: click.Context, /, as_json: bool, verbose: bool) -> int:
    """Lists the devices that the adb server knows, those that cannot be used too. Exits with 3 where there is none."""
    refuse_command(context)
    rows = list_devices()
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "devices": [_fields(row) for row in rows]}, indent=2))
    elif rows:
        click.echo("\n".join(table(rows)))
    if not rows:
        raise DeviceError(
            "no devices/emulators found", "connect one with USB debugging on, or start an emulator"
        )
    return 0


def _fields(row: DeviceRow) -> dict[str, object]:
    return {
        "serial": row.serial,
        "state": row.state,
        "usable": row.state == READY,
        "kind": "usb" if row.is_usb else "tcp",
        "model": row.model,
        "product": row.product,
        "device": row.device,
    }
