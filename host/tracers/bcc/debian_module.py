"""Debian's Python package of bcc, and the kernel headers that it compiles with.

PyPI has another program of the same name (an N-dimensional lattice). So the module is taken from the folder of Debian's
packages and nowhere else, by its path; what this environment calls `bcc` is never imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from memleak_android.host.errors import TracerError

FOLDER = Path("/usr/lib/python3/dist-packages")  # Debian Python Policy, "Module Path"
INSTALL = "apt-get install python3-bpfcc"
SOURCE_VARIABLE = "BCC_KERNEL_SOURCE"
KHEADERS = Path("/sys/kernel/kheaders.tar.xz")  # CONFIG_IKHEADERS: bcc unpacks it


def load(folder: Path = FOLDER) -> Any:
    """The module, as `bcc`. Raises TracerError with the way to get it."""
    if reason := refusal(folder):
        raise TracerError(reason, INSTALL)
    place = folder / "bcc"
    spec = importlib.util.spec_from_file_location(
        "bcc", place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module  # its own parts import each other by this name
    try:
        spec.loader.exec_module(module)
    except (
        ImportError,
        OSError,
        SyntaxError,
    ) as error:  # libbcc is missing, or this Python is too new for it
        raise TracerError(f"{place} cannot be imported: {error}", INSTALL) from None
    if not hasattr(module, "BPF"):
        raise TracerError(f"{place} is another program of that name: it has no class BPF", INSTALL)
    return module


def refusal(folder: Path = FOLDER) -> str:
    """Why the module cannot be had, "" where it can; nothing is imported."""
    if (folder / "bcc" / "libbcc.py").is_file():
        return ""
    stranger = wrong_package()
    beside = f" ({stranger} in this environment is another program and not used)" if stranger else ""
    return f"Debian's bcc is not in {folder}{beside}"


def wrong_package() -> str:
    """`bcc VERSION` where this environment has the package of that name from PyPI, else ""."""
    try:
        found = distribution("bcc")
    except PackageNotFoundError:
        return ""
    is_debians = Path(str(found.locate_file(""))) == FOLDER
    return "" if is_debians else f"bcc {found.version}"


def kernel_headers() -> str:
    """Where bcc finds kernel headers (its src/cc/frontends/clang/kbuild_helper.cc looks in this order).

    Raises TracerError where there are none.
    """
    release, named = platform.release(), os.environ.get(SOURCE_VARIABLE)
    place = Path(named) if named else Path("/lib/modules") / release / "build"
    if (
        place / "include" / "generated"
    ).is_dir():  # Debian has the rest in the folder `source` beside `build`
        return str(place)
    if named:
        raise TracerError(
            f"{named} holds no kernel headers", f"{SOURCE_VARIABLE} names a configured kernel tree"
        )
    if KHEADERS.is_file():
        return str(KHEADERS)
    raise TracerError(
        f"no kernel headers to compile with (neither {place} nor {KHEADERS})",
        f"apt-get install linux-headers-{release}, or name a tree of headers by {SOURCE_VARIABLE}",
    )
