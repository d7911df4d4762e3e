"""The kernels that a machine can run: Debian's, of the lines that Android's GKI follows."""

import lzma
import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.debian_packages import Suite, Unavailable

DEFAULT = "6.1"
# Kernel features that Debian builds as modules; each brings its dependencies.
MODULES = ("virtio_pci", "virtio_net")


@dataclass(frozen=True)
class Line:
    """Source of a line of kernels: a suite and the meta package that names today's version."""

    suite: str
    package: str


# 5.10 is Android 12 and 13, 6.1 Android 14, 6.12 Android 16 (source.android.com, GKI release builds).
LINES = {
    "5.10": Line("bullseye", "linux-image-cloud-arm64"),
    "6.1": Line("bookworm", "linux-image-cloud-arm64"),
    "6.12": Line("trixie", "linux-image-cloud-arm64"),
    "6.12-16k": Line("trixie", "linux-image-arm64-16k"),
}


@dataclass(frozen=True)
class Kernel:
    """A kernel image and its modules (file name, content), in the order in which they can be loaded."""

    image: Path
    modules: tuple[tuple[str, bytes], ...]


def kernel(name: str, architecture: str = "arm64") -> Kernel:
    """Fetches the kernel of a line ("6.1"). Raises Unavailable; KeyError for a name that is none of LINES."""
    line = LINES[name]
    suite = Suite(line.suite, architecture)
    package = suite.depends(line.package)
    root = suite.unpacked(package)
    version = package.removeprefix("linux-image-")
    image = root / "boot" / f"vmlinuz-{version}"
    if not image.is_file():
        raise Unavailable(f"{package} has no {image.name}")
    folders = [root / "lib/modules" / version, root / "usr/lib/modules" / version]
    return Kernel(image, load_order(next(folder for folder in folders if folder.is_dir()), MODULES))


def load_order(folder: Path, wanted: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """The wanted modules that are not built in, after those that their .modinfo names as `depends=`."""
    files = {re.sub(r"\.ko(\.xz)?$", "", path.name).replace("-", "_"): path for path in folder.rglob("*.ko*")}
    ordered: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in ordered or name not in files:
            return
        content = _content(files[name])
        for needed in module_depends(content):
            add(needed)
        ordered[name] = content

    for name in wanted:
        add(name.replace("-", "_"))
    return tuple((f"{name}.ko", content) for name, content in ordered.items())


def module_depends(content: bytes) -> list[str]:
    """The modules that a module's .modinfo section says it needs."""
    found = re.search(rb"\0depends=([^\0]*)\0", content)
    return [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []


def _content(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
