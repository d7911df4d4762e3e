"""Extents of functions without a symbol, from their file's unwind tables."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.unwind.cfi.sources import row_sources
from memleak_android.unwind.cfi.table import CfiSource
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.errors import UnwindError


class FunctionExtents:
    """The functions and split-off parts (`name.cold`) of a file; none where its tables cannot be read."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf

    @cached_property
    def _tables(self) -> list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Starts in ascending order, and lengths, of each table."""
        try:
            image = ElfImage(memoryview(self._elf.data), self._elf.path)
            entries = [
                source.section.entries()
                for source in row_sources(image, with_packed=False)
                if isinstance(source, CfiSource)
            ]
        except UnwindError:
            return []
        return [(found.starts, found.lengths) for found in entries]

    def around(self, vaddr: int) -> range | None:
        """Addresses of the function that holds vaddr; None if no table has it."""
        for starts, lengths in self._tables:
            i = int(np.searchsorted(starts, vaddr, "right")) - 1
            if i >= 0 and vaddr - int(starts[i]) < int(lengths[i]):
                return range(int(starts[i]), int(starts[i]) + int(lengths[i]))
        return None

    def bytes_from(self, vaddr: int) -> int:
        """Bytes of the function that begins at vaddr; 0 if no table has such an entry."""
        found = self.around(vaddr)
        return len(found) if found is not None and found.start == vaddr else 0
