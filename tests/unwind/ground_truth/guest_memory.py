"""The memory of an emulated process: three areas, a list of mapped files, a break and the address of the next mapping."""

import ctypes
import mmap
from dataclasses import dataclass
from pathlib import Path

from memleak_android.unwind import AddressSpace, Mapping
from memleak_android.unwind.maps import layered
from tests.unwind.ground_truth.shadow_stack import Region

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """Start addresses of a process's areas. All three are large enough for the programs here."""

    word_bytes: int
    program: int  # position-dependent programs
    mappings: int  # everything that mmap hands out, position-independent programs first
    stack_top: int
    program_bytes: int = 64 << 20
    mappings_bytes: int = 512 << 20
    stack_bytes: int = 8 << 20


# arm64: 39 bits of address, as Android has; the bits above are free for signatures.
LAYOUTS = {
    "arm64": Layout(8, 0x40_0000, 0x55_5000_0000, 0x7F_F000_0000),
    "arm32": Layout(4, 0x1_0000, 0x4000_0000, 0xBE00_0000),
}


class _Area:
    def __init__(self, start: int, size: int) -> None:
        self.start, self.end = start, start + size
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        self.bytes = mmap.mmap(-1, size, flags=flags)
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))


class GuestMemory:
    """Readable, writable and executable throughout; what `mappings` say of rights is for unwinders."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        program = _Area(layout.program, layout.program_bytes)
        stack = _Area(layout.stack_top - layout.stack_bytes, layout.stack_bytes)
        self.areas = (program, _Area(layout.mappings, layout.mappings_bytes), stack)
        self.stack_low, self.stack_high = stack.start, stack.end
        self._next = layout.mappings
        self.program_break = 0
        self.spaces: list[AddressSpace] = [AddressSpace(())]

    def regions(self) -> list[Region]:
        return [Region(a.start, a.end, a.host) for a in self.areas]

    def _area(self, address: int, size: int) -> tuple[_Area, int]:
        for area in self.areas:
            if area.start <= address and address + size <= area.end:
                return area, address - area.start
        raise MemoryError(f"the guest has no memory at {address:#x}")

    def read(self, address: int, size: int) -> bytes:
        area, at = self._area(address, size)
        return area.bytes[at : at + size]

    def write(self, address: int, data: bytes) -> None:
        area, at = self._area(address, len(data))
        area.bytes[at : at + len(data)] = data

    def text(self, address: int) -> str:
        """A string that ends with a zero byte."""
        area, at = self._area(address, 1)
        return area.bytes[at : area.bytes.find(b"\0", at)].decode()

    def word(self, address: int) -> int:
        return int.from_bytes(self.read(address, self.layout.word_bytes), "little")

    def reserve(self, size: int) -> int:
        """Fresh addresses, which hold zeros."""
        start = self._next
        self._next += -(-size // PAGE) * PAGE + PAGE
        if self._next > self.areas[1].end:
            raise MemoryError("the guest has mapped more than there is room for")
        return start

    def show(self, start: int, size: int, permissions: str, offset: int, path: str | Path) -> None:
        """Says that a file (or "[vdso]") lies at [start, start + size)."""
        new = Mapping(start, start + -(-size // PAGE) * PAGE, permissions, offset, str(path))
        self.spaces.append(layered(self.spaces[-1].mappings, [new]))
