"""Android's parts that Debian lacks: am, pm and the like, su, run-as, properties, the zygotes and their apps."""

from collections.abc import Iterable
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.emulator.phone import bionic
from tests.emulator.phone.apps import (
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
from tests.emulator.phone.compiler import compiled, zig
from tests.emulator.phone.cpio import NewcArchive
from tests.emulator.phone.selinux import FOLDER, policies
from tests.support.debian_packages import unpacked_from_first

OTHER_SUITE = "bookworm"  # the other architecture's, where a mirror has not all of the first
STATIC = "aarch64-linux-musl"
SYSTEM = 1000
LINKS = {"pm": "package", "cmd": "package", "dumpsys": "package", "setprop": "getprop"}
# An Android 10 phone, whose libc is the one of the bionic apps. The build type and the API level are added at boot.
PROPERTIES = {
    "ro.build.version.release": "10",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.product.cpu.abilist": "arm64-v8a,armeabi-v7a,armeabi",
    "ro.product.model": "QEMU virt",
}


def add_surface(archive: NewcArchive, suite: str) -> None:
    """Adds the Android side of the image. Raises Unavailable."""
    for name, target in LINKS.items():
        archive.link(f"/system/bin/{name}", target)
    su = compiled("su", zig(STATIC), ["-O2", "-static", "-s"], [ANDROID / "su.c"])
    archive.file("/system/bin/su.off", su, 0o4755)
    for script in ("am", "package", "getprop", "run-as", "getenforce", "logwrapper"):
        archive.file(f"/system/bin/{script}", ANDROID / script, 0o755)
    for policy, content in policies().items():
        archive.file(f"{FOLDER}/{policy}", content)
    archive.folder("/data/property", 0o755)
    for name, value in PROPERTIES.items():
        archive.file(f"/data/property/{name}", value.encode())
    archive.file("/system/etc/apps", "".join(app.line for app in installed()).encode())
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
    for folder, mode in (("", 0o700), ("/cache", 0o2771), ("/code_cache", 0o2771), ("/files", 0o771)):
        archive.folder(data + folder, mode, app.uid, app.uid)
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


def shared_libraries(roots: Iterable[Path], folders: Iterable[Path]) -> list[Path]:
    """The libraries that ELF files need, and those that these need (DT_NEEDED), as far as `folders` have them."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        for name in needed(waiting.pop()):
            candidates = [folder / name for folder in folders if (folder / name).exists()]
            if candidates and name not in found:
                found[name] = candidates[0]
                waiting.append(candidates[0])
    return sorted(found.values())


def needed(path: Path) -> list[str]:
    """The DT_NEEDED names of an ELF file."""
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        if not isinstance(section, DynamicSection):
            return []
        return [str(tag.needed) for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]  # type: ignore[attr-defined]
