"""Map of a process's code: it decides which words of a stack enter its key.

One bit for each 64 KiB, at a hash of the address, as accounting.c looks it up. A word counts if it points into code. It also
counts if it points to where the kernel maps files and not to a known mapping: a library may just have been mapped there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.machine.parse import parse_maps

_SHIFT, _BITS = 16, 1 << 18
_SPAN_MAX = _BITS  # granules of one mapping; a larger one sets all bits anyway


def code_bits(maps_text: str) -> NDArray[np.uint8]:
    """(65544,) bytes: a bit map of code, one of other mappings that share no bit with code, and 1 as 64 bits.

    maps_text: /proc/PID/maps. Bit i of byte j = hash 8 j + i.
    """
    no_code, code = np.zeros(_BITS, bool), np.zeros(_BITS, bool)
    for mapping in parse_maps(maps_text):
        first, last = mapping.start >> _SHIFT, (mapping.end - 1) >> _SHIFT
        if first >> 31:  # vsyscall belongs to the kernel
            continue
        granules = np.arange(first, min(last, first + _SPAN_MAX) + 1, dtype=np.uint64)
        hashes = (granules ^ granules >> np.uint64(18)) & np.uint64(_BITS - 1)
        (code if "x" in mapping.permissions else no_code)[hashes] = True
    is_known = np.array([1], "<u8").view(np.uint8)
    return np.concatenate([np.packbits(np.concatenate([code, no_code & ~code]), bitorder="little"), is_known])
