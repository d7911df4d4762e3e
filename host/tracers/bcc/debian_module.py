"""Debian's Python package of bcc, and the kernel headers that it compiles with.

PyPI has another program of the same name (an N-dimensional lattice). The folder of Debian's packages therefore comes first.
"""

import importlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

from memleak_android.host.errors import TracerError

FOLDER = Path("/usr/lib/python3/dist-packages")  # Debian Python Policy, "Module Path"
INSTALL = "apt-get install python3-bpfcc"
SOURCE_VARIABLE = "BCC_KERNEL_SOURCE"
KHEADERS = Path("/sys/kernel/kheaders.tar.xz")  # CONFIG_IKHEADERS: bcc unpacks it


def load(folder: Path = FOLDER) -> Any:
    """Imports the module. Raises TracerError with the command that installs it."""
    if reason := refusal(folder):
        raise TracerError(reason, INSTALL)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("bcc")
    except (ImportError, OSError, SyntaxError) as error:  # no libbcc, or this Python is too new for it
        raise TracerError(f"{folder / 'bcc'} cannot be imported: {error}", INSTALL) from None
    finally:
        sys.path.remove(str(folder))


def refusal(folder: Path = FOLDER) -> str:
    """Why the module is not usable, "" if it is. Imports nothing."""
    return "" if (folder / "bcc" / "libbcc.py").is_file() else f"Debian's bcc is not in {folder}"


def kernel_headers() -> str:
    """The path of bcc's kernel headers, in the search order of its src/cc/frontends/clang/kbuild_helper.cc.

    Raises TracerError if there are none.
    """
    release, named = platform.release(), os.environ.get(SOURCE_VARIABLE)
    tree = Path(named) if named else Path("/lib/modules") / release / "build"
    if (tree / "include" / "generated").is_dir():  # Debian has the rest in `source` next to `build`
        return str(tree)
    if named:
        raise TracerError(
            f"{named} holds no kernel headers", f"{SOURCE_VARIABLE} names a configured kernel tree"
        )
    if KHEADERS.is_file():
        return str(KHEADERS)
    raise TracerError(
        f"no kernel headers to compile with (neither {tree} nor {KHEADERS})",
        f"apt-get install linux-headers-{release}, or name a tree of headers by {SOURCE_VARIABLE}",
    )
