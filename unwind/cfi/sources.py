"""The unwind tables of an ELF file, in the order of their precedence.

.debug_frame, .eh_frame, the same two inside .gnu_debugdata, .ARM.exidx: complete tables first, exidx last, whose
entries have no end of their own and so claim the gaps between functions too.
"""

from collections.abc import Iterator

from memleak_android.unwind.cfi.eh_frame_hdr import eh_frame_vaddr, parse_hdr
from memleak_android.unwind.cfi.exidx import ExidxSource
from memleak_android.unwind.cfi.section import CfiSection
from memleak_android.unwind.cfi.table import CfiSource, RowSource
from memleak_android.unwind.elf_headers import EM_ARM, Section
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.trace import Method


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
