"""Debian's Python package of bcc, and the kernel headers that it compiles with.

PyPI has another program of the same name (an N-dimensional lattice). The module is therefore loaded by its path in the folder
of Debian's packages. The environment's own `bcc` is never imported.
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
    """Imports the module as `bcc`. Raises TracerError with the command that installs it."""
    if reason := refusal(folder):
        raise TracerError(reason, INSTALL)
    package = folder / "bcc"
    spec = importlib.util.spec_from_file_location(
        "bcc", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module  # its own parts import each other by this name
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError, SyntaxError) as error:  # no libbcc, or this Python is too new for it
        raise TracerError(f"{package} cannot be imported: {error}", INSTALL) from None
    if not hasattr(module, "BPF"):
        raise TracerError(f"{package} is another program of that name: it has no class BPF", INSTALL)
    return module


def refusal(folder: Path = FOLDER) -> str:
    """Why the module is not usable, "" if it is. Imports nothing."""
    if (folder / "bcc" / "libbcc.py").is_file():
        return ""
    other = wrong_package()
    note = f" ({other} in this environment is another program and not used)" if other else ""
    return f"Debian's bcc is not in {folder}{note}"


def wrong_package() -> str:
    """`bcc VERSION` if this environment has PyPI's package of that name, else ""."""
    try:
        found = distribution("bcc")
    except PackageNotFoundError:
        return ""
    is_debians = Path(str(found.locate_file(""))) == FOLDER
    return "" if is_debians else f"bcc {found.version}"


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
