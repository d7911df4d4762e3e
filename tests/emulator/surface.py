"""Android's parts that Debian lacks: am, pm and the like, su, run-as, properties, the zygotes and their apps."""

from __future__ import annotations

from pathlib import Path

from tests.emulator import bionic
from tests.emulator.apps import (
    ANDROID,
    ARM64,
    BIONIC,
    OWN_APP,
    Abi,
    App,
    abis,
    app_process,
    installed,
    libraries,
    own_allocator_library,
)
from tests.emulator.compiler import compiled, zig
from tests.emulator.cpio import NewcArchive
from tests.emulator.debian import unpacked_from_first
from tests.emulator.elf import shared_libraries
from tests.emulator.selinux import FOLDER, policies

OTHER_SUITE = "bookworm"  # the other architecture's, where a mirror has not all of the first
STATIC = "aarch64-linux-musl"
SYSTEM, PACKAGE_INFO = 1000, 1032
SERVER = ("system_server", "activity", "package", "properties", "processes", "apps")
CALLS = ("am", "pm", "cmd", "dumpsys", "monkey", "getprop", "setprop")
# An Android 10 phone, whose libc is the one of the bionic apps. The build type and the API level are added at boot.
PROPERTIES = {
    "dalvik.vm.isa.arm64.variant": "generic",
    "init.svc.adbd": "running",
    "persist.sys.usb.config": "adb",
    "ro.board.platform": "qemu",
    "ro.boot.hardware": "qemu",
    "ro.build.characteristics": "emulator",
    "ro.build.id": "QQ3A.200805.001",
    "ro.build.version.codename": "REL",
    "ro.build.version.release": "10",
    "ro.build.version.security_patch": "2020-08-05",
    "ro.dalvik.vm.native.bridge": "0",
    "ro.hardware": "qemu",
    "ro.kernel.qemu": "1",
    "ro.product.brand": "memleak",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.product.cpu.abilist": "arm64-v8a,armeabi-v7a,armeabi",
    "ro.product.cpu.abilist32": "armeabi-v7a,armeabi",
    "ro.product.cpu.abilist64": "arm64-v8a",
    "ro.product.device": "qemu_arm64",
    "ro.product.manufacturer": "memleak",
    "ro.product.model": "QEMU virt",
    "ro.product.name": "qemu_arm64",
    "ro.secure": "1",
    "ro.zygote": "zygote64_32",
}


def program(name: str, *sources: str) -> Path:
    """A static program of the machine's own, for arm64, made of files in android/."""
    paths = [ANDROID / f"{source}.c" for source in sources or (name,)]
    return compiled(name, zig(STATIC), ["-O2", "-static", "-s"], paths)


def add_surface(archive: NewcArchive, suite: str) -> None:
    """Adds the Android side of the image. Raises Unavailable."""
    archive.file("/system/bin/system_server", program("system_server", *SERVER), 0o755)
    archive.file("/system/bin/cmd", program("service_call"), 0o755)
    for name in set(CALLS) - {"cmd"}:
        archive.link(f"/system/bin/{name}", "cmd")
    archive.file("/system/bin/run-as", program("run-as", "run_as", "apps"), 0o4755)
    archive.file("/system/bin/su.off", program("su"), 0o4755)
    for script in ("getenforce", "logwrapper"):
        archive.file(f"/system/bin/{script}", ANDROID / script, 0o755)
    for policy, content in policies().items():
        archive.file(f"{FOLDER}/{policy}", content)
    archive.folder("/data/property", 0o755)
    for name, value in PROPERTIES.items():
        archive.file(f"/data/property/{name}", value.encode())
    archive.file("/system/etc/init.android", ANDROID / "init.android")
    archive.file("/system/etc/apps", "".join(app.line for app in installed()).encode())
    archive.file(
        "/data/system/packages.list",
        "".join(app.packages_list_line for app in installed()).encode(),
        0o640,
        SYSTEM,
        PACKAGE_INFO,
    )
    for abi in abis():
        _runtime(archive, suite, abi)
    if bionic.is_at_hand():
        _bionic(archive)
    for app in installed():
        _app(archive, app)


def _runtime(archive: NewcArchive, suite: str, abi: Abi) -> None:
    """The zygote of an ABI, with the loader and the libraries that its apps need."""
    # Programs of the machine's own architecture share their libraries with adbd; the others have their own.
    suites = (suite,) if abi is ARM64 else (suite, OTHER_SUITE)
    debian = unpacked_from_first(suites, abi.debian, "libc6", "libgcc-s1", "libstdc++6")
    archive.file(abi.runtime, app_process(abi), 0o755)
    folders = [debian / "usr/lib", debian / "lib"]  # before trixie a package had its files in both
    (loader, *_) = (folder / abi.loader for folder in folders if (folder / abi.loader).exists())
    archive.file(f"/usr/lib/{abi.loader}", loader, 0o755)
    roots = [app_process(abi), *libraries(abi, stripped=True).values()]
    for library in shared_libraries(roots, [folder / abi.triplet for folder in folders]):
        archive.file(f"/usr/lib/{abi.triplet}/{library.name}", library, 0o755)


def _bionic(archive: NewcArchive) -> None:
    archive.file(BIONIC.runtime, bionic.app_process(), 0o755)
    archive.file("/system/bin/linker64", bionic.LIBC / "linker64", 0o755)
    for name in ("libc.so", "libdl.so"):
        archive.file(f"/system/lib64/{name}", bionic.LIBC / name)


def _app(archive: NewcArchive, app: App) -> None:
    data = f"/data/data/{app.package}"
    for folder, mode in (
        (data, 0o700),
        (f"{data}/cache", 0o2771),
        (f"{data}/code_cache", 0o2771),
        (f"{data}/files", 0o771),
    ):
        archive.folder(folder, mode, app.uid, app.uid)
    directory = app.directory
    apk = b"PK\5\6" + bytes(18)  # an empty ZIP file
    if app.in_apk:
        code = bionic.library(stripped=True).read_bytes()
        apk = bionic.Apk.holding(f"lib/{app.abi.name}/libleaky.so", code).content
    elif app is OWN_APP:
        archive.file(app.library, own_allocator_library(), 0o755, SYSTEM, SYSTEM)
    else:
        for name, library in libraries(app.abi, stripped=True).items():
            archive.file(f"{directory}/lib/{app.abi.folder}/{name}", library, 0o755, SYSTEM, SYSTEM)
    archive.file(f"{directory}/base.apk", apk, 0o644, SYSTEM, SYSTEM)


def write_symbols(folder: Path) -> None:
    """Links the apps' libraries with their debugging information into folder/<abi>/ and folder/bionic/."""
    for abi in abis():
        (folder / abi.name).mkdir(parents=True)
        for name, library in libraries(abi, stripped=False).items():
            (folder / abi.name / name).symlink_to(library)
    if bionic.is_at_hand():
        (folder / "bionic").mkdir()
        (folder / "bionic" / "libleaky.so").symlink_to(bionic.library(stripped=False))
