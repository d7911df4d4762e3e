"""The linker's cache: a small one by hand, the machine's own against ldconfig, and garbage."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.host.elf.sections import EM_AARCH64, EM_X86_64
from memleak_android.host.machine.local.ld_so_cache import LdSoCache

X86_64, ARM64, I386 = 0x0303, 0x0A03, 0x0003


def cache(entries: list[tuple[int, str, str, int]], levels: list[str]) -> bytes:
    """dl-cache.h: header, entries, strings, extension directory, indices of the level names."""
    strings = bytearray()
    start = 48 + 24 * len(entries)

    def string(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return start + len(strings) - len(text) - 1

    table = b"".join(
        struct.pack("<iIIIQ", flags, string(key), string(path), 0, hwcap)
        for flags, key, path, hwcap in entries
    )
    names = [string(level) for level in levels]
    at = start + len(strings) + -len(strings) % 4
    header = struct.pack("<20sII4xI12x", b"glibc-ld.so.cache1.1", len(entries), len(strings), at)
    words = struct.pack("<II", 0xEAA42174, 1) + struct.pack("<IIII", 1, 0, at + 24, 4 * len(names))
    body = header + table + strings
    return body + b"\0" * (at - len(body)) + words + struct.pack(f"<{len(names)}I", *names)


def level(index: int) -> int:
    return 1 << 62 | index


CACHE = cache(
    [
        (X86_64, "liba.so.1", "/lib/v3/liba.so.1", level(0)),
        (X86_64, "liba.so.1", "/lib/v2/liba.so.1", level(1)),
        (X86_64, "liba.so.1", "/lib/liba.so.1", 0),
        (X86_64, "liba.so.1", "/lib/old/liba.so.1", 4),
        (I386, "liba.so.1", "/lib32/liba.so.1", 0),
        (ARM64, "liba.so.1", "/lib/arm/liba.so.1", 0),
        (X86_64, "lib.so.1", "/lib/lib.so.1", 0),
    ],
    ["x86-64-v3", "x86-64-v2"],
)


@pytest.mark.parametrize("before", [b"", b"ld.so-1.7.0\0\0\0\0\0"])
def test_find(before: bytes) -> None:
    parsed = LdSoCache.parse(before + CACHE)
    best = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
    assert list(parsed.find("liba.so.1", EM_X86_64, best)) == [
        "/lib/v3/liba.so.1",
        "/lib/v2/liba.so.1",
        "/lib/liba.so.1",
    ]
    assert list(parsed.find("liba.so.1", EM_X86_64, ("x86-64-v2",))) == [
        "/lib/v2/liba.so.1",
        "/lib/liba.so.1",
    ]
    assert list(parsed.find("liba.so.1", EM_AARCH64, best)) == ["/lib/arm/liba.so.1"]
    assert list(parsed.find("so.1", EM_X86_64, best)) == []
    assert list(parsed.find("liba.so", EM_X86_64, best)) == []


def test_every_entry_of_this_machine() -> None:
    ldconfig = shutil.which("ldconfig", path=f"/sbin:/usr/sbin:{os.environ.get('PATH', '')}")
    if ldconfig is None or not os.path.exists("/etc/ld.so.cache"):
        pytest.skip("no ldconfig or no /etc/ld.so.cache here")
    listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    parsed = LdSoCache.read()
    checked = 0
    for line in listing.splitlines():
        if "(libc6,x86-64)" in line:
            name, path = line.strip().split(" (libc6,x86-64) => ")
            assert path in list(parsed.find(name, EM_X86_64, ()))
            checked += 1
    assert checked > 10


def test_no_cache(tmp_path: os.PathLike[str]) -> None:
    assert list(LdSoCache.read(os.path.join(tmp_path, "none")).find("libc.so.6", EM_X86_64, ())) == []


@given(st.data())
def test_damaged_caches_never_raise(data: st.DataObject) -> None:
    damaged = bytearray(CACHE)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(CACHE) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(CACHE)))
    list(LdSoCache.parse(bytes(damaged[:cut])).find("liba.so.1", EM_X86_64, ("x86-64-v3",)))
