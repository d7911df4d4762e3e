"""Allocators in the target that a session did not trace."""

import os
from pathlib import Path

import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.session.other_allocators import other_allocators
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.wire.payloads import Maps
from tests.support.workloads import PROGRAMS, built

SAID = "own_allocator brings a malloc of its own, which was not traced ({} own_allocator traces it)"


@pytest.mark.parametrize(
    ("about", "flags", "way_out"),
    [
        ({"tracer": "preload"}, ["-Wl,-Bsymbolic"], "--tracer bpf -O"),
        ({"tracer": "plt"}, ["-Wl,-Bsymbolic"], "--tracer bpf -O"),
        ({"tracer": "preload"}, ["-Wl,-Bsymbolic-functions"], "--tracer bpf -O"),
        ({"tracer": "preload"}, ["-fvisibility=hidden"], "--tracer bpf -O"),
        ({"tracer": "bpf", "about": {"allocator": "/lib/libc.so.6"}}, ["-fvisibility=hidden"], "-O"),
        ({"tracer": "preload"}, [], None),  # its calls come to the shim
        ({"tracer": "bpf", "about": {"allocator": "/lib/libc.so.6"}}, [], "-O"),
    ],
)
def test_a_library_with_a_malloc_of_its_own(
    about: dict[str, object], flags: list[str], way_out: str | None
) -> None:
    library = built(PROGRAMS / "own_allocator", "-shared", "-fPIC", "-fno-builtin", *flags)
    assert said_of(library, about) == ([SAID.format(way_out)] if way_out else [])


@pytest.mark.parametrize(
    ("content", "permissions", "is_known"),
    [
        (None, "r-xp", False),  # deleted
        (b"\x7fELF, cut", "r-xp", False),
        (b"JiTD", "r-xp", True),  # a compiler's notes for perf
        (None, "r-xs", True),  # a compiler's code
    ],
)
def test_a_file_that_cannot_be_read_is_not_taken_to_bring_none(
    content: bytes | None, permissions: str, is_known: bool, tmp_path: Path
) -> None:
    file = tmp_path / "plugin.so"
    file.write_bytes(content or b"")
    if content is None:
        file.unlink()
    found = said_of(file, {"tracer": "preload"}, permissions)
    assert found == ([] if is_known else ["plugin.so could not be read: it may bring a malloc of its own"])


def said_of(file: Path, about: dict[str, object], permissions: str = "r-xp") -> list[str]:
    capture = Capture()
    capture.session |= about
    inode = file.stat().st_ino if file.exists() else 7
    line = f"7f0000000000-7f0000001000 {permissions} 00000000 00:00 {inode} {file}\n"
    capture.maps.append(Maps(os.getpid(), 100, line))
    return [reason.text for reason in other_allocators(capture, ModuleFiles(LocalFiles(is_running=True)))]
