"""The unwind tables of an ELF file, in the order of their precedence.

.debug_frame, .eh_frame, the same two inside .gnu_debugdata, .ARM.exidx: complete tables first, exidx last, whose
entries have no end of their own and so claim the gaps between functions too.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi.exidx import ExidxSource
from memleak_android.unwind.cfi.section import CfiSection, FdeIndex
from memleak_android.unwind.cfi.table import CfiSource, RowSource
from memleak_android.unwind.elf_headers import EM_ARM, Section
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.reader import (
    DW_EH_PE_INDIRECT,
    DW_EH_PE_OMIT,
    FIXED_FORMS,
    PointerBases,
    read_pointer,
)
from memleak_android.unwind.trace import Method

_PCREL, _DATAREL = 0x10, 0x30


# The search table of .eh_frame_hdr (LSB 5.0 §10.6.2): believed where it can be searched, never the last word.
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


def row_sources(image: ElfImage, *, with_packed: bool = True) -> Iterator[RowSource]:
    """Lazy: a source is created if the previous ones have no rule for some address. Unpacking costs milliseconds."""
    yield from _debug_frame(image, Method.DEBUG_FRAME)
    yield from _eh_frame(image, Method.EH_FRAME)
    inner = image.mini_debuginfo if with_packed else None
    if inner is not None:
        yield from _debug_frame(inner, Method.DEBUGDATA)
        yield from _eh_frame(inner, Method.DEBUGDATA, has_headers=False)
    yield from _exidx(image)


def _debug_frame(image: ElfImage, method: Method) -> Iterator[RowSource]:
    data = image.debug_section("frame")
    if data:
        yield CfiSource(_cfi_section(image, data, 0, method, is_eh=False), None)


def _eh_frame(image: ElfImage, method: Method, *, has_headers: bool = True) -> Iterator[RowSource]:
    """has_headers: the program headers are the file's own, not those of another file (objcopy --only-keep-debug)."""
    hdr = image.section_of_loader(".eh_frame_hdr") if has_headers else None
    hdr_bytes = bytes(image.section_bytes(hdr)) if hdr else b""
    hdr_vaddr = hdr.vaddr if hdr else 0
    frame = image.section(".eh_frame") or _behind_hdr(image, hdr_bytes, hdr_vaddr)
    if frame is not None:
        cfi = _cfi_section(image, bytes(image.section_bytes(frame)), frame.vaddr, method, is_eh=True)
        yield CfiSource(cfi, parse_hdr(hdr_bytes, hdr_vaddr, cfi))


def _exidx(image: ElfImage) -> Iterator[RowSource]:
    table = image.section_of_loader(".ARM.exidx") if image.machine == EM_ARM else None
    if table is not None:
        code = [s.vaddr + s.memory_bytes for s in image.loads if s.is_executable]
        data = bytes(image.section_bytes(table))
        yield ExidxSource(data, table.vaddr, max(code, default=0), image.bytes_at)


def _cfi_section(image: ElfImage, data: bytes, vaddr: int, method: Method, *, is_eh: bool) -> CfiSection:
    text, got = image.section(".text"), image.section(".got")
    return CfiSection(
        data,
        vaddr,
        method,
        image.word_bytes,
        text.vaddr if text else 0,
        got.vaddr if got else 0,
        is_eh=is_eh,
        read_word=image.word_at,
    )


def _behind_hdr(image: ElfImage, hdr: bytes, hdr_vaddr: int) -> Section | None:
    """Without section headers: .eh_frame from where the header says to the end of its segment."""
    vaddr = eh_frame_vaddr(hdr, hdr_vaddr, image.word_bytes)
    if vaddr is None:
        return None
    for segment in image.loads:
        delta = vaddr - segment.vaddr
        if 0 <= delta < segment.file_bytes:
            return Section(".eh_frame", vaddr, segment.file_offset + delta, segment.file_bytes - delta)
    return None
