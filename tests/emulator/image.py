"""The machine's only file system: an initramfs with Debian's adbd, mksh, toybox and glibc where Android has its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.emulator.compiler import compiled
from tests.emulator.cpio import NewcArchive
from tests.emulator.debian import Suite
from tests.emulator.kernels import Kernel

HERE = Path(__file__).parent
ANDROID = HERE / "android"
SUITE = "trixie"  # the first that ships the device's side of adb
PACKAGES = (
    "adbd", "android-libbase", "android-libboringssl", "android-libcutils", "android-liblog", "busybox-static",
    "libbrotli1", "libbsd0", "libc6", "libcap2", "libcrypt1", "libgcc-s1", "liblz4-1", "libmd0", "libprotobuf32t64",
    "libstdc++6", "libsystemd0", "libxxhash0", "libzstd1", "mksh", "toybox", "zlib1g",
)  # fmt: skip
ADBD = "usr/lib/android-sdk/platform-tools/adbd"
LIBRARIES = "usr/lib/aarch64-linux-gnu"
# Debian's toybox is built without these; the answers of busybox are close enough.
BUSYBOX_APPLETS = ("dd", "diff", "expr", "gzip", "more", "stty", "tr", "vi")
STATIC = "aarch64-linux-musl"
SYSTEM, SHELL = 1000, 2000


def write_image(stream: BinaryIO, kernel: Kernel) -> None:
    """Writes the initramfs for a kernel. Raises Unavailable when a package cannot be had."""
    debian = Suite(SUITE, "arm64").unpacked(*PACKAGES)
    archive = NewcArchive(stream)
    _folders(archive)
    _modules(archive, kernel)
    _shell(archive, debian)
    _adbd(archive, debian)
    archive.file("/init", ANDROID / "init", 0o755)
    archive.close()


def _folders(archive: NewcArchive) -> None:
    for path in ("/proc", "/sys", "/dev", "/mnt", "/vendor/bin", "/system/xbin", "/etc"):
        archive.folder(path)
    archive.folder("/tmp", 0o1777)
    archive.folder("/data", 0o771, SYSTEM, SYSTEM)
    archive.link("/bin", "/system/bin")
    archive.link("/sbin", "/system/bin")
    archive.link("/lib", "/usr/lib")


def _modules(archive: NewcArchive, kernel: Kernel) -> None:
    for name, content in kernel.modules:
        archive.file(f"/usr/lib/modules/{name}", content)
    archive.file("/usr/lib/modules/load", "".join(f"{name}\n" for name, _ in kernel.modules).encode())


def _shell(archive: NewcArchive, debian: Path) -> None:
    archive.file("/system/bin/sh", debian / "usr/bin/mksh-static", 0o755)
    archive.file("/system/bin/toybox", debian / "usr/bin/toybox", 0o755)
    archive.file("/system/bin/busybox", debian / "usr/bin/busybox", 0o755)
    toys = (HERE / "toys.txt").read_text().splitlines()
    for toy in " ".join(line for line in toys if not line.startswith("#")).split():
        archive.link(f"/system/bin/{toy}", "toybox")
    for applet in BUSYBOX_APPLETS:
        archive.link(f"/system/bin/{applet}", "busybox")
    archive.file("/system/bin/as_user", program("as_user", ANDROID / "as_user.c"), 0o750)
    archive.file("/etc/passwd", ANDROID / "passwd")
    archive.file("/etc/group", ANDROID / "group")


def _adbd(archive: NewcArchive, debian: Path) -> None:
    archive.file(f"/{ADBD}", debian / ADBD, 0o755)
    archive.file("/usr/lib/ld-linux-aarch64.so.1", debian / "usr/lib/ld-linux-aarch64.so.1", 0o755)
    folders = [debian / LIBRARIES / "android", debian / LIBRARIES]
    for library in shared_libraries([debian / ADBD, debian / "usr/bin/toybox"], folders):
        archive.file(f"/{library.relative_to(debian)}", library, 0o755)


def program(name: str, *sources: Path) -> Path:
    """A static program of the machine's own, for arm64."""
    return compiled(name, STATIC, ["-O2", "-static", "-s"], sources)


def shared_libraries(roots: Iterable[Path], folders: Iterable[Path]) -> list[Path]:
    """The libraries that ELF files need, and those that these need (DT_NEEDED), as far as `folders` have them."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        for name in needed(waiting.pop()):
            places = [folder / name for folder in folders if (folder / name).exists()]
            if places and name not in found:
                found[name] = places[0]
                waiting.append(places[0])
    return sorted(found.values())


def needed(path: Path) -> list[str]:
    """The DT_NEEDED names of an ELF file."""
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        if not isinstance(section, DynamicSection):
            return []
        return [tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
