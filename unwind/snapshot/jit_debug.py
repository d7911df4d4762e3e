"""Code of JIT compilers that announce it to debuggers (GDB manual, "JIT Compilation Interface").

The compiler keeps a list of small ELF files in memory, reached through the variable __jit_debug_descriptor:

    struct descriptor { u32 version; u32 action; entry *relevant; entry *first; };
    struct entry { entry *next; entry *previous; void *symfile; u64 symfile_bytes; };
"""

from collections.abc import Callable, Iterator

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.cfi.sources import row_sources
from memleak_android.unwind.elf_headers import has_name
from memleak_android.unwind.errors import (
    BadCfiError,
    BadElfError,
    UnreadableMemoryError,
    UnsupportedArchError,
)
from memleak_android.unwind.maps import AddressSpace, Mapping
from memleak_android.unwind.memory import MemoryRegions

_VARIABLE = b"__jit_debug_descriptor"
_VERSION = 1
_ENTRIES_MAX = 1 << 14
_SYMFILE_BYTES_MAX = 1 << 26
_SYMFILES_BYTES_MAX = 1 << 28  # of all together
_FUNCTIONS_MAX = 1 << 18


def jit_modules(
    arch: Arch, space: AddressSpace, memory: MemoryRegions, module_of: Callable[[Mapping], Module | None]
) -> Iterator[Module]:
    """The ELF files of every readable list. Their addresses are absolute."""
    total = 0
    for address in _descriptors(space, module_of):
        for start, size in _entries(arch, memory, address):
            total += size
            if size > _SYMFILE_BYTES_MAX or total > _SYMFILES_BYTES_MAX:
                continue
            try:
                module = Module.from_bytes(memory.image(start, size), f"[jit:{start:x}]")
            except (BadElfError, UnsupportedArchError):
                continue
            if module.arch == arch:
                yield module


def function_ranges(module: Module) -> list[tuple[int, int]]:
    """[start, end) of the code that a JIT's ELF describes, by its segments, or without any by its CFI."""
    code = [(s.vaddr, s.vaddr + s.memory_bytes) for s in module.loads if s.is_executable]
    if code:
        return code
    found = []
    for source in row_sources(module, with_packed=False):
        *_, index = source.indexes()
        for offset in index.offsets[:_FUNCTIONS_MAX].tolist():
            try:
                rows = source.function(offset)
            except BadCfiError:
                continue
            found.append((rows.start, rows.end))
    return found


def _descriptors(space: AddressSpace, module_of: Callable[[Mapping], Module | None]) -> Iterator[int]:
    """Addresses of the variable: in the writable mappings of the libraries that export it."""
    seen: set[int] = set()
    variables: dict[Module, list[int]] = {}
    for mapping in space.mappings:
        if not mapping.permissions.startswith("rw") or not mapping.file_offset or not mapping.path:
            continue
        module = module_of(mapping)
        if module is None:
            continue
        if module not in variables:
            variables[module] = _variable(module)
        for vaddr in variables[module]:
            address = vaddr - module.bias_of(mapping)
            if mapping.start <= address < mapping.end and address not in seen:
                seen.add(address)
                yield address


def _variable(module: Module) -> list[int]:
    found: list[int] = []
    for table, names in ((".dynsym", ".dynstr"), (".symtab", ".strtab")):
        symbols, strings = module.symbols(table, names)
        chosen = has_name(symbols, strings, _VARIABLE) & (symbols["section"] != 0)
        found += symbols["value"][chosen].tolist()
    return found


def _entries(arch: Arch, memory: MemoryRegions, descriptor: int) -> Iterator[tuple[int, int]]:
    """(address, bytes) of each ELF. A list that leads into a circle or out of the captured memory ends there."""
    word = arch.word_bytes
    size_at = -(-3 * word // arch.u64_alignment) * arch.u64_alignment
    seen: set[int] = set()
    try:
        if memory.read(descriptor, 4) != _VERSION:
            return
        entry = memory.read(descriptor + 8 + word, word)
        while entry and entry not in seen and len(seen) < _ENTRIES_MAX:
            seen.add(entry)
            yield memory.read(entry + 2 * word, word), memory.read(entry + size_at, 8)
            entry = memory.read(entry, word)
    except UnreadableMemoryError:
        return
