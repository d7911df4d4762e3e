"""Words of a stack that may be return addresses."""

from __future__ import annotations

import numpy as np

from memleak_android.host.tracers.bcc.code_map import code_bits

MAPS = """\
00400000-00420000 r-xp 00000000 00:01 7 /program
7f0000000000-7f0000020000 r--p 00000000 00:01 8 /library
7f0000020000-7f0000040000 r-xp 00020000 00:01 8 /library
7f0000050000-7f0000058000 r-xp 00000000 00:01 9 /small
7f0000058000-7f0000060000 rw-p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""


def bits(maps_text: str) -> tuple[set[int], set[int]]:
    """Hashes of the granules that are code, and of those that are not."""
    data = code_bits(maps_text)
    assert len(data) == 65_544 and data[65_536:].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    code, no_code = (
        np.flatnonzero(np.unpackbits(data[at : at + 32_768], bitorder="little")) for at in (0, 32_768)
    )
    return set(code.tolist()), set(no_code.tolist())


def entry(address: int) -> int:
    granule = address >> 16
    return (granule ^ granule >> 18) & 0x3FFFF


def test_code_and_what_is_not() -> None:
    code, no_code = bits(MAPS)
    assert code == {entry(at) for at in (0x400000, 0x410000, 0x7F0000020000, 0x7F0000030000, 0x7F0000050000)}
    assert no_code == {
        entry(0x7F0000000000),
        entry(0x7F0000010000),
    }  # data beside code in one granule counts as code


def test_a_huge_mapping_takes_bounded_time() -> None:
    assert bits("10000000000-600000000000 rw-p 00000000 00:00 0\n") == (set(), set(range(1 << 18)))
