"""`sdk`: where the header and the libraries are by which a program records itself."""

from pathlib import Path

import click

from memleak_android.host import prebuilt
from memleak_android.host.console import refuse_command
from memleak_android.host.errors import UsageError

FILES = ("memleak.h", "Android.mk", "memleak-config.cmake")


@click.command(short_help="Print the folder for programs that link the library themselves.")
@click.pass_context
def sdk(context: click.Context, /) -> int:
    """Prints the folder with memleak.h, Android.mk and memleak-config.cmake; the libraries lie beside it, by ABI."""
    refuse_command(context)
    # resolve(): a strict editable install is a tree of symlinks that does not know files built since
    folder = Path(str(prebuilt.__file__)).resolve().parent / "sdk"
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise UsageError(f"{folder / absent[0]} is missing", "build it with `make device`")
    click.echo(folder)
    return 0
