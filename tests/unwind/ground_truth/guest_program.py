"""Loads an ELF program and its interpreter into guest memory, as the kernel does (fs/binfmt_elf.c)."""

import struct
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tests.unwind.ground_truth.guest_memory import PAGE, GuestMemory

_AT = {
    "PHDR": 3,
    "PHENT": 4,
    "PHNUM": 5,
    "PAGESZ": 6,
    "BASE": 7,
    "ENTRY": 9,
    "UID": 11,
    "EUID": 12,
    "GID": 13,
}
_AT |= {"EGID": 14, "HWCAP": 16, "SECURE": 23, "RANDOM": 25, "EXECFN": 31}
# arm64: fp, asimd, atomics. arm32: half, thumb, fast mult, vfp, edsp, neon, vfpv3, tls, vfpv4, idiv (asm/hwcap.h)
_HWCAP = {8: 0x103, 4: 2 | 4 | 0x10 | 0x40 | 0x80 | 0x1000 | 0x2000 | 0x8000 | 0x10000 | 0x60000}


@dataclass(frozen=True, slots=True)
class Loaded:
    """entry: where it begins. base: added to its vaddrs. headers: address, size and number of its program headers."""

    entry: int
    base: int
    headers: tuple[int, int, int]
    interpreter: str


def load(memory: GuestMemory, path: Path) -> Loaded:
    """One ELF file, its segments mapped."""
    data = path.read_bytes()
    with path.open("rb") as file:
        elf = ELFFile(file)
        segments = [s.header for s in elf.iter_segments("PT_LOAD")]
        interpreter = next((s.get_interp_name() for s in elf.iter_segments("PT_INTERP")), "")
        header = elf.header
    end = max(s.p_vaddr + s.p_memsz for s in segments)
    base = 0 if header.e_type == "ET_EXEC" else memory.reserve(end)
    for segment in segments:
        _map_segment(memory, path, data, base, segment)
    if header.e_type == "ET_EXEC" or not memory.program_break:
        memory.program_break = (base + end + PAGE - 1) // PAGE * PAGE
    if header.e_type == "ET_DYN" and not memory.spaces[-1].find(memory.program_break):
        memory.program_break = memory.reserve(16 << 20)
    first = next(s for s in segments if s.p_offset <= header.e_phoff < s.p_offset + s.p_filesz)
    headers = base + first.p_vaddr + header.e_phoff - first.p_offset, header.e_phentsize, header.e_phnum
    return Loaded(base + header.e_entry, base, headers, interpreter)


def _map_segment(memory: GuestMemory, path: Path, data: bytes, base: int, segment: object) -> None:
    vaddr, offset, size = segment.p_vaddr, segment.p_offset, segment.p_filesz  # type: ignore[attr-defined]
    flags = segment.p_flags  # type: ignore[attr-defined]
    before = vaddr % PAGE
    memory.write(base + vaddr - before, data[offset - before : offset + size])
    permissions = "".join(c if flags & bit else "-" for c, bit in (("r", 4), ("w", 2), ("x", 1))) + "p"
    if size:
        memory.show(base + vaddr - before, size + before, permissions, offset - before, path)


def start_stack(
    memory: GuestMemory,
    program: Loaded,
    interpreter: Loaded | None,
    arguments: list[str],
    environment: list[str],
) -> int:
    """Arguments, environment and auxiliary vector below the stack's top; returns the stack pointer."""
    at = memory.stack_high - 64

    def put(data: bytes) -> int:
        nonlocal at
        at -= len(data)
        memory.write(at, data)
        return at

    name = put(arguments[0].encode() + b"\0")
    random = put(bytes(range(16)))
    argv = [put(text.encode() + b"\0") for text in arguments]
    envp = [put(text.encode() + b"\0") for text in environment]
    address, size, number = program.headers
    values = {"PHDR": address, "PHENT": size, "PHNUM": number, "PAGESZ": PAGE, "ENTRY": program.entry}
    values |= {"BASE": interpreter.base if interpreter else 0}
    values |= dict.fromkeys(("UID", "EUID", "GID", "EGID"), 1000)
    values |= {"HWCAP": _HWCAP[memory.layout.word_bytes], "SECURE": 0, "RANDOM": random, "EXECFN": name}
    auxiliary = [x for key, value in values.items() for x in (_AT[key], value)]
    words = [len(argv), *argv, 0, *envp, 0, *auxiliary, 0, 0]
    form = f"<{len(words)}{'Q' if memory.layout.word_bytes == 8 else 'I'}"
    at = (at - struct.calcsize(form)) & ~15
    memory.write(at, struct.pack(form, *words))
    return at
