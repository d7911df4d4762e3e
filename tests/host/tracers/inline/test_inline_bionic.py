"""The allocator's entries of Android 10's libc, patched, go where they went: `adrp; add; ldar; cbnz; b; br`.

Run by Unicorn with an empty and with a set hook of the libc, with the trampoline in reach of a branch and out of reach.
"""

import struct
from collections.abc import Iterator

import pytest

from memleak_android.host.elf.dynamic import ElfFile, FunctionSymbol
from memleak_android.host.tracers.inline.patch_plan import FunctionCode
from memleak_android.host.tracers.probes.allocator import HEAP_FUNCTIONS
from memleak_android.host.tracers.probes.arch import ARM64
from memleak_android.host.tracers.probes.placement import jumps_from_outside
from memleak_android.unwind.code.disassembly import Flow, decode_arm64
from memleak_android.unwind.elf_headers import EM_AARCH64, PF_X, PT_LOAD
from tests.support.foreign_libc import BIONIC
from tests.support.moved.code import plan_straight

unicorn = pytest.importorskip("unicorn", reason="unicorn, which runs arm64 code, is not installed")
from unicorn import arm64_const as arm64

pytestmark = pytest.mark.skipif(not (BIONIC / "libc.so").is_file(), reason=f"no {BIONIC}/libc.so")

BASE, HOOK = 0x1000_0000, 0x3000_0000
NEAR, FAR = 0x1400_0000, 0x70_0000_0000
BRK = struct.pack("<I", 0xD4200000)
ARGUMENTS = (64, 3, 5, 7)  # of every function; x1 * x2 does not overflow
_ALL = unicorn.UC_PROT_ALL
_GENERAL = [*range(arm64.UC_ARM64_REG_X0, arm64.UC_ARM64_REG_X28 + 1), arm64.UC_ARM64_REG_X29,
            arm64.UC_ARM64_REG_X30, arm64.UC_ARM64_REG_SP]  # fmt: skip


def heap_functions(elf: ElfFile) -> Iterator[FunctionCode]:
    names = {one.name for one in HEAP_FUNCTIONS}
    symbols = [one for one in elf.dynamic_functions(names) if one.is_default]
    text = next(one for one in elf.segments if one.type == PT_LOAD and one.flags & PF_X)
    starts = [one.vaddr - text.vaddr for one in symbols]
    ranges = [(start, start + one.size) for start, one in zip(starts, symbols, strict=True)]
    jumped_to = jumps_from_outside(ARM64, elf.view(text.file_offset, text.file_bytes), ranges)
    for symbol, hits in zip(symbols, jumped_to, strict=True):
        yield FunctionCode(symbol.name, EM_AARCH64, BASE + symbol.vaddr, _code(elf, symbol), frozenset(hits))


def _code(elf: ElfFile, symbol: FunctionSymbol) -> bytes:
    offset = elf.file_offset(symbol.vaddr)
    assert offset is not None
    return elf.slice(offset, symbol.size)


class Libc:
    """Mapped by its segments. Wherever a function leaves for another one, or for its hook, there is a trap."""

    def __init__(self, elf: ElfFile, functions: list[FunctionCode]) -> None:
        self.cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, arm64.UC_CPU_ARM64_MAX)
        loaded = [one for one in elf.segments if one.type == PT_LOAD]
        self.cpu.mem_map(BASE, (max(one.vaddr + one.memory_bytes for one in loaded) | 0xFFFF) + 1, _ALL)
        for address in (HOOK, NEAR, FAR):
            self.cpu.mem_map(address, 0x1000, _ALL)
        for one in loaded:
            self.cpu.mem_write(BASE + one.vaddr, elf.slice(one.file_offset, one.file_bytes))
        self.data = next(one for one in loaded if not one.flags & PF_X and one.flags & 2)
        self.cpu.mem_write(HOOK, BRK)
        for function in functions:
            for goal in _leaves_to(function):
                self.cpu.mem_write(goal, BRK)
        self.cpu.hook_add(unicorn.UC_HOOK_INTR, lambda cpu, *_: cpu.emu_stop())

    def write(self, address: int, code: bytes) -> None:
        self.cpu.mem_write(address, code)
        self.cpu.ctl_remove_cache(address, address + len(code))

    def run(self, start: int, hook: int, state: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the end address and the registers there."""
        words = self.data.memory_bytes // 8
        self.cpu.mem_write(BASE + self.data.vaddr, struct.pack(f"<{words}Q", *[hook] * words))
        self.cpu.reg_write_batch(list(zip(_GENERAL, state, strict=True)))
        self.cpu.emu_start(start, 0, count=100)
        return (self.cpu.reg_read(arm64.UC_ARM64_REG_PC), *self.cpu.reg_read_batch(_GENERAL))


def _leaves_to(function: FunctionCode) -> Iterator[int]:
    end = function.address + len(function.code)
    for one in decode_arm64(function.code, function.address):
        if one.flow is Flow.JUMP and one.target is not None and not function.address <= one.target < end:
            yield one.target


@pytest.mark.parametrize("trampoline", [NEAR, FAR])
def test_the_patched_entries_of_bionic_go_where_they_went(trampoline: int) -> None:
    elf = ElfFile(str(BIONIC / "libc.so"))
    functions = list(heap_functions(elf))
    assert {one.name for one in functions} >= {"malloc", "calloc", "realloc", "free", "memalign"}
    libc = Libc(elf, functions)
    entry = (*ARGUMENTS, *range(0x1000, 0x101B), HOOK + 0x800)
    for function in functions:
        goals = {HOOK, *_leaves_to(function)}
        plan = plan_straight(function, trampoline)
        assert len(plan.patch) == (4 if trampoline == NEAR else 16)
        for hook in (0, HOOK):
            libc.write(function.address, function.code)
            before = libc.run(function.address, hook, entry)
            libc.write(plan.trampoline_address, plan.trampoline)
            libc.write(plan.address, plan.patch)
            after = libc.run(function.address, hook, entry)
            assert before[0] in goals and (before[0] == HOOK) == bool(hook), function.name
            assert _but(after, plan.scratch) == _but(before, plan.scratch), function.name


def _but(outcome: tuple[int, ...], scratch: frozenset[str]) -> list[int]:
    return [value for i, value in enumerate(outcome) if f"x{i - 1}" not in scratch]
