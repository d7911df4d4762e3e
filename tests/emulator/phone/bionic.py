"""An app on real bionic, loaded from within its APK: where Android 10's libc and linker are at hand."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.emulator.phone.compiler import ROOT, compiled, zig

ANDROID = Path(__file__).parent / "android"
LIBC = ROOT.parent / "shared" / "bionic" / "android10-arm64"  # test data of AOSP, beside the repository
TARGET = "aarch64-linux-gnu.2.31"
PAGE_BYTES = 16384
# Per run of its activity: allocator, bytes of a block, blocks, functions from the innermost to the thread's first.
LEAKS = (
    ("malloc", 211, 23, ("operator new", "app::Map::draw", "app::render", "main")),
    ("malloc", 1009, 38, ("app::decode", "app::receive")),
    ("calloc", 2159, 1, ("app::load", "main")),
    ("realloc", 4099, 7, ("app::journal", "app::load", "main")),
)
# Headers are glibc's: what app_process uses of them is the same in bionic.
COMPILE = (
    "-O2", "-g", "-fPIC", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin", "-fno-unroll-loops",
    "-fno-sanitize=all", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-funwind-tables", f"-ffile-prefix-map={ROOT}=.",
)  # fmt: skip
LINK = (
    "-nostdlib", "-Wl,--hash-style=both", "-Wl,--eh-frame-hdr", "-Wl,--allow-shlib-undefined",
    f"-Wl,-z,max-page-size={PAGE_BYTES}",
)  # fmt: skip


def is_at_hand() -> bool:
    return all((LIBC / name).is_file() for name in ("libc.so", "libdl.so", "linker64"))


def app_process() -> Path:
    """The program that the app runs in, linked against bionic."""
    objects = [_object(f"{name}.c") for name in ("app_process", "bionic_start")]
    linker = ["-pie", "-Wl,--dynamic-linker,/system/bin/linker64"]
    return compiled(
        "app_process64_bionic", zig(TARGET), [*LINK, *linker, LIBC / "libc.so", LIBC / "libdl.so"], objects
    )


def library(*, stripped: bool) -> Path:
    """The app's library. Both kinds have the same build-id, so that one explains the other."""
    code = _object("bionic_app.cc", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden")
    build_id = hashlib.sha1(code.read_bytes()).hexdigest()
    flags = [
        "-shared",
        "-Wl,-soname,libleaky.so",
        f"-Wl,--build-id=0x{build_id}",
        *(["-s"] if stripped else []),
    ]
    return compiled("libleaky.so", zig(TARGET), [*LINK, *flags, LIBC / "libc.so"], [code])


def _object(source: str, *flags: str) -> Path:
    return compiled(f"{source}.o", zig(TARGET), [*COMPILE, *flags, "-c"], [ANDROID / source])


@dataclass(frozen=True)
class Apk:
    """An APK that keeps a library as it is, at the start of a page, so that it can be mapped (zipalign -p)."""

    content: bytes
    offset: int

    @classmethod
    def holding(cls, name: str, library: bytes) -> Apk:
        entry = zipfile.ZipInfo(name)
        header_bytes = 30 + len(name)  # APPNOTE.TXT 4.3.7: the local header, then name, extra field, content
        padding = -(header_bytes + 4) % PAGE_BYTES
        entry.extra = b"\x35\xd9" + padding.to_bytes(2, "little") + bytes(padding)  # zipalign's own field
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(entry, library)
        return cls(stream.getvalue(), header_bytes + 4 + padding)
