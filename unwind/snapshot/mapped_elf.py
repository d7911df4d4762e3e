"""Which ELF image a mapping shows: of a file, of a part of a file (an APK), or of captured memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.errors import BadElfError, UnsupportedArchError
from memleak_android.unwind.file_reading import opened
from memleak_android.unwind.maps import AddressSpace, Mapping
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.snapshot.files import file_in

_MAGIC = b"\x7fELF"
_DELETED = " (deleted)"  # what the kernel adds in maps
_IMAGE_BYTES_MAX = 1 << 28  # of one ELF put together from memory
_PAGE = 4096
_SEGMENTS_MAX = 16  # mappings that one library has, at most


@dataclass(frozen=True, slots=True)
class MappedElf:
    """module: None where nothing usable is known. start_offset: where in the mapped file the ELF begins.

    address_offset: without a module, what a position in this mapping is counted from: bytes before its start.
    from_memory: read from captured memory, not from a file.
    """

    module: Module | None
    start_offset: int
    address_offset: int = 0
    from_memory: bool = False

    def vaddr(self, mapping: Mapping, address: int) -> int:
        """The position of an address in the ELF; without one, in the mapping."""
        if self.module is None or mapping.is_symfile:
            return address - mapping.start + self.address_offset
        return self.module.vaddr_of(mapping, address)


class ElfFinder:
    """Finds the ELF images of an address space, each opened once. folder: where files lie by their base names.

    memory: None if none was captured; then the ELF of a missing file is not searched in memory.
    refused: names of files that are there but are not read, as file_in() says.
    """

    def __init__(self, folder: Path, space: AddressSpace, memory: MemoryRegions | None) -> None:
        self._folder = folder
        self._space = space
        self._memory = memory
        self._found: dict[Mapping, MappedElf] = {}
        self._files: dict[tuple[Path, int], Module | None] = {}
        self._images: dict[int, Module | None] = {}
        self.refused: set[str] = set()

    def find(self, mapping: Mapping) -> MappedElf:
        if mapping not in self._found:
            self._found[mapping] = self._of_file(mapping) or self._in_memory(mapping)
        return self._found[mapping]

    def _of_file(self, mapping: Mapping) -> MappedElf | None:
        """The ELF of the mapped file; None if there is no such file.

        An ELF may begin where the mapping does (a library stored in an APK), where the file does, or where a
        mapping before this one does (a library in an APK whose code is a segment of its own).
        """
        name = PurePosixPath(mapping.path.removesuffix(_DELETED)).name
        try:
            path = file_in(self._folder, name)
            if path is None:
                if name and (self._folder / name).is_symlink():
                    self.refused.add(name)
                return None
            offsets = [mapping.file_offset, 0, *(before.file_offset for before in self._before(mapping))]
            for offset in offsets:
                if (path, offset) in self._files or _begins_elf(path, offset):
                    module = self._opened(path, offset)
                    if module is None or offset in offsets[:2] or _reaches(module, mapping, offset):
                        return MappedElf(module, offset)
        except (OSError, ValueError, RuntimeError):  # of links: a loop
            return None
        return MappedElf(None, mapping.file_offset)

    def _before(self, mapping: Mapping) -> Iterator[Mapping]:
        """Mappings of the same file before this one, the nearest first: its ELF may begin at one of them.

        Code may span several mappings: patching an instruction changes the protection of its page for a while.
        """
        for _ in range(_SEGMENTS_MAX if mapping.is_executable else 1):
            before = self._space.neighbour(mapping, -1)
            if before is None or before.file_offset >= mapping.file_offset:
                return
            yield before
            mapping = before

    def _opened(self, path: Path, offset: int) -> Module | None:
        if (path, offset) not in self._files:
            try:
                self._files[path, offset] = Module.from_path(path, offset)
            except (BadElfError, UnsupportedArchError):
                self._files[path, offset] = None
        return self._files[path, offset]

    def _in_memory(self, mapping: Mapping) -> MappedElf:
        """The ELF that the captured memory of a mapping and of its neighbours holds."""
        if self._memory is None:
            return MappedElf(None, mapping.file_offset)
        for first in (mapping, *self._before(mapping)):
            if self._memory.bytes_at(first.start, 4) != _MAGIC:
                continue
            if first.start not in self._images:
                self._images[first.start] = self._image(first, self._memory)
            module = self._images[first.start]
            if module is not None and _reaches(module, mapping, first.file_offset):
                return MappedElf(module, first.file_offset, from_memory=True)
            break
        before = next(self._before(mapping), mapping)
        return MappedElf(None, mapping.file_offset, mapping.file_offset - before.file_offset)

    def _image(self, first: Mapping, memory: MemoryRegions) -> Module | None:
        """The file as far as the mappings from `first` on show it and their bytes are known."""
        if memory.bytes_at(first.start, 4) != _MAGIC:
            return None
        image = bytearray()
        shown: Mapping | None = first
        for _ in range(_SEGMENTS_MAX):
            assert shown is not None
            at = shown.file_offset - first.file_offset
            size = min(shown.end - shown.start, _IMAGE_BYTES_MAX - at)
            data = memory.image(shown.start, size) if size > 0 else b""
            if data:
                image.extend(bytes(max(at + len(data) - len(image), 0)))
                image[at : at + len(data)] = data
            after = self._space.neighbour(shown, 1)
            if after is None or after.file_offset <= shown.file_offset:
                break
            shown = after
        try:
            module = Module.from_bytes(bytes(image), first.path)
        except (BadElfError, UnsupportedArchError):
            return None
        module.elf_offset = first.file_offset
        return module


def _reaches(module: Module, mapping: Mapping, elf_offset: int) -> bool:
    """Whether the mapping shows bytes of a segment of the ELF that begins at an offset of the same file."""
    first = mapping.file_offset - elf_offset
    last = first + mapping.end - mapping.start
    return any(s.file_offset < last and first < s.file_offset + s.file_bytes for s in module.loads)


def _begins_elf(path: Path, offset: int) -> bool:
    with opened(path) as file:
        file.seek(offset)
        return file.read(4) == _MAGIC
