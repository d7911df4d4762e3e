"""Paths of the device binaries of this installation."""

import os
import platform
from pathlib import Path

from memleak_android.host import prebuilt
from memleak_android.host.errors import TracerError

ARCH_OF_MACHINE = {"x86_64": "x86_64", "aarch64": "arm64", "armv7l": "arm32", "armv8l": "arm32"}

# The folder of each architecture's binaries: Android's name of the ABI, as ndk-build/ knows it.
ABI_OF_ARCH = {"x86_64": "x86_64", "arm64": "arm64-v8a", "arm32": "armeabi-v7a"}

AGENT, SHIM = "memleakd", "libmemleak.so"
# For work on the device parts: a binary from elsewhere.
OVERRIDES = {AGENT: "MEMLEAKD", SHIM: "MEMLEAK_SHIM"}


def local_arch() -> str:
    machine = platform.machine()
    if machine not in ARCH_OF_MACHINE:
        expected = ", ".join(sorted(ARCH_OF_MACHINE))
        raise TracerError(f"unsupported machine: {machine} (expected {expected})", "measure another machine")
    return ARCH_OF_MACHINE[machine]


def find_binary(name: str, arch: str) -> Path:
    """The device binary `name` for `arch`. Raises TracerError if this installation lacks it."""
    override = os.environ.get(OVERRIDES.get(name, ""), "")
    # resolve(): a strict editable install is a tree of symlinks that does not know files built since
    abi = ABI_OF_ARCH.get(arch, arch)
    path = Path(override) if override else Path(str(prebuilt.__file__)).resolve().parent / abi / name
    if not path.is_file():
        raise TracerError(
            f"{path} is missing: no {name} for {arch}", f"build it with `make device ABIS={abi}`"
        )
    return path.absolute()
