"""The machine's only file system: an initramfs with Debian's adbd, mksh, toybox and glibc where Android has its own."""

from pathlib import Path
from typing import BinaryIO

from tests.emulator.phone.apps import ANDROID, installed
from tests.emulator.phone.cpio import NewcArchive
from tests.emulator.phone.kernels import Kernel
from tests.emulator.phone.surface import add_surface, shared_libraries
from tests.support.debian_packages import Suite

HERE = Path(__file__).parent
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
ROOT, SYSTEM, SHELL = 0, 1000, 2000
# system/core/rootdir/init.rc, on post-fs-data
DATA_FOLDERS = (
    ("/data", 0o771, SYSTEM), ("/data/app", 0o771, SYSTEM), ("/data/data", 0o771, SYSTEM), ("/data/local", 0o751, ROOT),
    ("/data/local/tmp", 0o771, SHELL), ("/data/misc", 0o1771, SYSTEM), ("/data/misc/adb", 0o2750, SYSTEM),
    ("/data/system", 0o775, SYSTEM), ("/data/user", 0o711, SYSTEM),
)  # fmt: skip


def write_image(stream: BinaryIO, kernel: Kernel) -> None:
    """Writes the initramfs for a kernel. Raises Unavailable when a package cannot be had."""
    debian = Suite(SUITE, "arm64").unpacked(*PACKAGES)
    archive = NewcArchive(stream)
    _folders(archive)
    _modules(archive, kernel)
    _shell(archive, debian)
    _adbd(archive, debian)
    add_surface(archive, SUITE)
    archive.file("/init", ANDROID / "init", 0o755)
    archive.close()


def _folders(archive: NewcArchive) -> None:
    for path in ("/proc", "/sys", "/dev", "/mnt", "/vendor/bin", "/system/xbin", "/etc"):
        archive.folder(path)
    archive.folder("/tmp", 0o1777)
    for path, mode, owner in DATA_FOLDERS:
        archive.folder(path, mode, owner, owner)
    archive.link("/data/user/0", "/data/data")
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
    users = "".join(f"{app.user}:x:{app.uid}:{app.uid}:{app.user}:/:/system/bin/sh\n" for app in installed())
    groups = "".join(f"{app.user}:x:{app.uid}:\n" for app in installed())
    archive.file("/etc/passwd", (ANDROID / "passwd").read_bytes() + users.encode())
    archive.file("/etc/group", (ANDROID / "group").read_bytes() + groups.encode())


def _adbd(archive: NewcArchive, debian: Path) -> None:
    archive.file(f"/{ADBD}", debian / ADBD, 0o755)
    archive.file("/system/bin/start_adbd", ANDROID / "start_adbd", 0o750)
    archive.file("/usr/lib/ld-linux-aarch64.so.1", debian / "usr/lib/ld-linux-aarch64.so.1", 0o755)
    folders = [debian / LIBRARIES / "android", debian / LIBRARIES]
    for library in shared_libraries([debian / ADBD, debian / "usr/bin/toybox"], folders):
        archive.file(f"/{library.relative_to(debian)}", library, 0o755)
