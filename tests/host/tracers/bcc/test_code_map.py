"""Words of a stack that may be return addresses."""

import numpy as np

from memleak_android.host.tracers.bcc.session import code_map

MAPS = """\
00400000-00420000 r-xp 00000000 00:01 7 /program
7f0000000000-7f0000020000 r--p 00000000 00:01 8 /library
7f0000020000-7f0000040000 r-xp 00020000 00:01 8 /library
7f0000050000-7f0000058000 r-xp 00000000 00:01 9 /small
7f0000058000-7f0000060000 rw-p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""


def bits(maps_text: str) -> tuple[set[int], tuple[int, int]]:
    """Hashes of the granules that are not code, and the bounds of code at fixed addresses."""
    data = np.frombuffer(code_map(maps_text), np.uint8)
    assert len(data) == 32_768 + 16
    low, high = data[32_768:].view("<u8").tolist()
    return set(np.flatnonzero(np.unpackbits(data[:32_768], bitorder="little")).tolist()), (low, high)


def entry(address: int) -> int:
    granule = address >> 16
    return (granule ^ granule >> 18) & 0x3FFFF


def test_code_and_what_is_not() -> None:
    no_code, bounds = bits(MAPS)
    assert bounds == (0x400000, 0x420000)
    # data beside code in one granule counts as code
    assert no_code == {entry(0x7F0000000000), entry(0x7F0000010000)}


def test_a_huge_mapping_takes_bounded_time() -> None:
    assert bits("10000000000-600000000000 rw-p 00000000 00:00 0\n") == (set(range(1 << 18)), (1, 1))
