"""The search table of .eh_frame_hdr (LSB 5.0 §10.6.2): believed where it can be searched, never the last word."""

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi.section import CfiSection, FdeIndex
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.reader import (
    DW_EH_PE_INDIRECT,
    DW_EH_PE_OMIT,
    FIXED_FORMS,
    PointerBases,
    read_pointer,
)

_PCREL, _DATAREL = 0x10, 0x30


def parse_hdr(hdr: bytes, hdr_vaddr: int, section: CfiSection) -> FdeIndex | None:
    """The sorted table of .eh_frame_hdr, or None where it has none, is not sorted, or cannot be searched."""
    if len(hdr) < 8 or hdr[0] != 1 or hdr[2] == DW_EH_PE_OMIT or hdr[3] == DW_EH_PE_OMIT:
        return None
    form, application = hdr[3] & 0x0F, hdr[3] & 0xF0
    dtype = FIXED_FORMS.get(form or (0x04 if section.word_bytes == 8 else 0x03))
    if dtype is None or application not in (0, _PCREL, _DATAREL):
        return None  # linkers write datarel | sdata4; of another size each, entries cannot be searched
    bases = PointerBases(hdr_vaddr, section.word_bytes, section.text, hdr_vaddr)
    try:
        _, at = read_pointer(hdr, 4, hdr[1] & ~DW_EH_PE_INDIRECT, bases)
        count, at = read_pointer(hdr, at, hdr[2] & ~DW_EH_PE_INDIRECT, bases)
    except BadCfiError:
        return None
    size = np.dtype(dtype).itemsize
    count = min(count, (len(hdr) - at) // (2 * size))
    if count <= 0:
        return None
    table = np.frombuffer(hdr, dtype, 2 * count, at).astype(np.int64)
    if application == _DATAREL:
        table += _wrapped(hdr_vaddr)
    elif application == _PCREL:
        table += np.arange(len(table)) * size + _wrapped(hdr_vaddr + at)
    starts = table[0::2].view(np.uint64)
    if section.word_bytes == 4:
        starts = starts & np.uint64(0xFFFFFFFF)
    if np.any(starts[1:] < starts[:-1]):
        return None
    return FdeIndex(starts, table[1::2] - _wrapped(section.vaddr))


def _wrapped(vaddr: int) -> NDArray[np.int64]:
    """A vaddr as NumPy adds it to signed columns; the upper half of the addresses is negative there."""
    return np.array([vaddr & (1 << 64) - 1], np.uint64).view(np.int64)


def eh_frame_vaddr(hdr: bytes, hdr_vaddr: int, word_bytes: int) -> int | None:
    """The address of .eh_frame according to .eh_frame_hdr."""
    if len(hdr) < 8 or hdr[0] != 1 or hdr[1] == DW_EH_PE_OMIT:
        return None
    try:
        bases = PointerBases(hdr_vaddr, word_bytes, 0, hdr_vaddr)
        return read_pointer(hdr, 4, hdr[1] & ~DW_EH_PE_INDIRECT, bases)[0]
    except BadCfiError:
        return None
