"""Where a process has code: which words of a stack its key is made of.

By 64 KiB and a hash of the place, as accounting.c looks it up. A word counts that points into code, and any that points to
where the kernel maps things and not to what is known to be something else: a library may just have been mapped there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.machine.parse import parse_maps

_SHIFT, _BITS = 16, 1 << 18
_SPAN_MAX = _BITS  # of one mapping, in granules: a larger one takes all bits anyway


def code_bits(maps_text: str) -> NDArray[np.uint8]:
    """(65544,) bytes: what is code, then what is not and shares no bit with what is, and 1 as 64 bits.

    maps_text: of /proc/PID/maps. Bit i of byte j = hash 8 j + i.
    """
    no_code, code = np.zeros(_BITS, bool), np.zeros(_BITS, bool)
    for mapping in parse_maps(maps_text):
        first, last = mapping.start >> _SHIFT, (mapping.end - 1) >> _SHIFT
        if first >> 31:  # vsyscall, which is the kernel's
            continue
        granules = np.arange(first, min(last, first + _SPAN_MAX) + 1, dtype=np.uint64)
        places = (granules ^ granules >> np.uint64(18)) & np.uint64(_BITS - 1)
        (code if "x" in mapping.permissions else no_code)[places] = True
    is_known = np.array([1], "<u8").view(np.uint8)
    return np.concatenate([np.packbits(np.concatenate([code, no_code & ~code]), bitorder="little"), is_known])
