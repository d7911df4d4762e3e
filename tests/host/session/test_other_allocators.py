"""Allocators in the target that a session did not trace."""

from __future__ import annotations

import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.session.other_allocators import other_allocators
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
    capture = Capture()
    capture.session |= about
    line = f"7f0000000000-7f0000001000 r-xp 00000000 00:00 {library.stat().st_ino} {library}\n"
    capture.maps.append(Maps(1, 100, line))
    found = [reason.text for reason in other_allocators(capture)]
    assert found == ([SAID.format(way_out)] if way_out else [])
