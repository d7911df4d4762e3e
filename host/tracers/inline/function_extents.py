"""The size of a function without a symbol, from its file's unwind tables."""

from __future__ import annotations

import numpy as np

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.unwind.cfi.sources import row_sources
from memleak_android.unwind.cfi.table import CfiSource
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.errors import UnwindError


def bytes_by_unwind_tables(elf: ElfFile, vaddr: int) -> int:
    """Bytes of the function that begins at vaddr; 0 if no table has such an entry."""
    try:
        image = ElfImage(memoryview(elf.data), elf.path)
        for source in row_sources(image, lambda: None):
            if isinstance(source, CfiSource):
                found = source.section.entries()
                hits = np.flatnonzero(found.starts == vaddr)
                if len(hits):
                    return int(found.lengths[hits[0]])
    except UnwindError:
        pass
    return 0
