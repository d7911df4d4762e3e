"""The apps of a machine, and the file from which its commands know them."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.emulator.phone import bionic
from tests.emulator.phone.compiler import BUILD, ROOT, compiled, cross

DEMO = ROOT / "device" / "demo"
HERE = Path(__file__).parent
ANDROID = HERE / "android"
# As released native code is built: optimised, without frame pointers. See ndk-build/demo.mk for the other two.
FLAGS = (
    "-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-unroll-loops", "-fno-builtin-malloc",
    "-fasynchronous-unwind-tables", "-pthread", "-fPIC",
)  # fmt: skip


@dataclass(frozen=True)
class Abi:
    """Differences between Android's ABIs on this machine."""

    name: str
    folder: str  # below lib/ of an installed app
    compiler: str  # of the C++ in its apps
    runtime: str
    debian: str  # the architecture of its libraries
    triplet: str  # their folder
    loader: str
    flags: tuple[str, ...] = ()


ARM64 = Abi(
    "arm64-v8a", "arm64", "aarch64-linux-gnu-g++", "/system/bin/app_process64",
    "arm64", "aarch64-linux-gnu", "ld-linux-aarch64.so.1",
    ("-mbranch-protection=standard",),  # signed return addresses and landing pads, where the CPU knows them
)  # fmt: skip
ARM32 = Abi(
    "armeabi-v7a", "arm", "arm-linux-gnueabihf-g++", "/system/bin/app_process32",
    "armhf", "arm-linux-gnueabihf", "ld-linux-armhf.so.3",
)  # fmt: skip
BIONIC = replace(ARM64, runtime="/system/bin/app_process64_bionic")


@dataclass(frozen=True)
class App:
    """An installed app. Its uid is 10000 and more, its activity runs device/demo's `main`."""

    package: str
    uid: int
    abi: Abi = ARM64
    debuggable: bool = False
    profileable: bool = False
    in_apk: bool = False  # android:extractNativeLibs="false": the library is mapped from the APK

    @property
    def user(self) -> str:
        """Its uid as a name, as bionic has it (libc/bionic/grp_pwd.cpp)."""
        return f"u0_a{self.uid - 10000}"

    @property
    def directory(self) -> str:
        """The code path, with the random parts that Android 11 and later put in."""
        token = hashlib.sha256(self.package.encode()).hexdigest()
        return f"/data/app/~~{token[:22]}==/{self.package}-{token[22:44]}=="

    @property
    def library(self) -> str:
        if self.in_apk:
            return f"{self.directory}/base.apk!/lib/{self.abi.name}/libleaky.so"
        return f"{self.directory}/lib/{self.abi.folder}/libleaky.so"

    @property
    def line(self) -> str:
        """The app's line in /system/etc/apps (android/app_process.c)."""
        flags = f"{self.debuggable:d} {self.profileable:d}"
        return f"{self.package} {self.uid} {flags} {self.abi.name} {self.abi.runtime} {self.directory} {self.library}\n"


APPS = (
    App("com.example.leaky", 10123, debuggable=True),
    App("com.example.release", 10124),
    App("com.example.profileable", 10125, profileable=True),
    App("com.example.leaky32", 10126, abi=ARM32, debuggable=True),
)
OWN_APP = App("com.example.own", 10128, debuggable=True)  # its allocator is hidden in its library
OWN_LEAKS = (
    ("leak_pages", 5003, 23),
    ("leak_titles", 31, 1009),
)  # function, bytes of a block, blocks; per run
BIONIC_APP = App("com.example.bionic", 10127, abi=BIONIC, debuggable=True, in_apk=True)


def abis() -> tuple[Abi, ...]:
    """The ABIs of a machine that is made here: 32 bits only where their compiler is (it may conflict with others)."""
    return (ARM64, ARM32) if shutil.which(ARM32.compiler) else (ARM64,)


def installed() -> tuple[App, ...]:
    """The apps of a machine that is made here: the one on bionic only where bionic is at hand."""
    apps = (*(app for app in APPS if app.abi in abis()), OWN_APP)
    return (*apps, BIONIC_APP) if bionic.is_at_hand() else apps


def libraries(abi: Abi, *, stripped: bool) -> dict[str, Path]:
    """The app's two libraries by name. Both kinds have the same build-id, so that one explains the other."""
    plugin = _library(abi, "libmemleak-demo.so", [DEMO / "plugin.cc"], ("-fvisibility=hidden",), stripped)
    # Linked against the whole one: a stripped library has all that a linker needs too, but one suffices.
    sources = sorted(path for path in DEMO.glob("*.cc") if path.name != "plugin.cc")
    flags = ("-Wl,-rpath,$ORIGIN", f"-L{plugin.parent}", "-lmemleak-demo")
    return {plugin.name: plugin, "libleaky.so": _library(abi, "libleaky.so", sources, flags, stripped)}


def own_allocator_library() -> Path:
    """OWN_APP's: not stripped, since what is hidden has a name only in .symtab."""
    sources = [ANDROID / "own_allocator_app.c", ROOT / "tests" / "device" / "programs" / "own_allocator.c"]
    compiler = cross(ARM64.compiler.removesuffix("++") + "cc")
    flags = ["-shared", "-fvisibility=hidden", "-Wl,-soname,libleaky.so", "-Wl,--build-id"]
    return compiled("libleaky.so", compiler, [*FLAGS, *ARM64.flags, *flags], sources)


def app_process(abi: Abi) -> Path:
    """The program that the apps of an ABI run in."""
    # Debian's start code has call frame information, which zig's lacks: the main thread's stacks end in it.
    compiler = cross(abi.compiler.removesuffix("++") + "cc")
    return compiled(
        abi.runtime.rsplit("/", 1)[1], compiler, ["-O2", "-fPIE", "-pie", "-ldl"], [ANDROID / "app_process.c"]
    )


def _library(abi: Abi, name: str, sources: list[Path], flags: tuple[str, ...], stripped: bool) -> Path:
    parts = "".join([abi.compiler, *abi.flags, name, *map(_digest, sources)])
    build_id = hashlib.sha1(parts.encode()).hexdigest()
    words: list[str | Path] = [
        "-std=c++17", *FLAGS, *abi.flags, "-shared", f"-Wl,-soname,{name}", f"-Wl,--build-id=0x{build_id}", "-Wl,-z,max-page-size=16384",
        f"-ffile-prefix-map={ROOT}=.", "-I", _planted().parent, *flags, *(["-s"] if stripped else []),
    ]  # fmt: skip
    return compiled(name, cross(abi.compiler), words, sources, depends=[DEMO / "demo.json"])


def _planted() -> Path:
    """The header of what the demo program leaks: made from demo.json, as ndk-build/demo.mk does."""
    header = BUILD / "include" / "planted.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    made = header.with_name(f"planted.{os.getpid()}")  # another worker may compile with the header meanwhile
    subprocess.run([sys.executable, DEMO / "planted.py", DEMO / "demo.json", made], check=True)
    return made.replace(header)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
