"""The architecture tables: consistent, and right where documents and hardware say what is right."""

import random
import re
import struct
from dataclasses import dataclass, field, replace

import pytest

from memleak_android.unwind import (
    AddressSpace,
    Arch,
    Mapping,
    Method,
    Module,
    SampleBatch,
    TraceEnd,
    unwind_batch,
)
from memleak_android.unwind.arch import ARCHES, arch_by_name
from memleak_android.unwind.arch.base import SignalFrame
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.step import StepFrame, unwind_sample
from tests.support.stack_capture import CapturedStack, sample_batch

CODE, STACK, OTHER_STACK = 0x10000, 0x7F000000, 0x7E000000
STACK_BYTES = 2048


def arch(name: str) -> Arch:
    found = arch_by_name(name)
    assert found is not None
    return found


@dataclass
class Program:
    """One executable mapping at CODE with these bytes, and a stack of random words."""

    arch: Arch
    code: bytes
    words: dict[int, int] = field(default_factory=dict)  # address → value
    registers: dict[str, int] = field(default_factory=dict)
    mask: int | None = None
    moved: int = 0  # of the second stack
    opened: Module | None = None

    def module(self, space: int, mapping: Mapping) -> Module | None:
        return self.opened

    def run(self) -> tuple[list[StepFrame], TraceEnd]:
        """By both unwinders, which must agree."""
        self.opened = self.opened or Module.from_bytes(self._elf(), "/code")
        space = AddressSpace([Mapping(CODE, CODE + 0x1000, "r-xp", 0, "/code")])
        samples = self._samples()
        planner = Planner(self.arch, [space], self, signature_mask=self.mask)
        frames, end = unwind_sample(samples, 0, planner, 64)
        if self.mask is None:
            traces = unwind_batch(samples, [space], self, max_frames=64)
            columns = (traces.address, traces.sp, traces.is_return, traces.method)
            assert list(zip(*(c.tolist() for c in columns), strict=True)) == [tuple(f) for f in frames]
        return frames, end

    def _elf(self) -> bytes:
        is_64 = self.arch.word_bytes == 8
        image = bytearray(0x1000)
        ident = b"\x7fELF" + bytes([1 + is_64, 1, 1]) + bytes(9)
        machine = self.arch.elf_machine
        if is_64:
            header = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
            header += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 0x1000, 0x1000, 0x1000)
        else:
            header = ident + struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, 52, 0, 0, 52, 32, 1, 40, 0, 0)
            header += struct.pack("<IIIIIIII", 1, 0, 0, 0, 0x1000, 0x1000, 5, 0x1000)
        image[: len(header)] = header
        image[0x100 : 0x100 + len(self.code)] = self.code
        return bytes(image)

    def _samples(self) -> SampleBatch:
        a = self.arch
        values = [random.Random(i).getrandbits(28) for i in range(len(a.registers))]
        for name, value in self.registers.items():
            values[a.slot(name)] = value
        stacks = {STACK: bytearray(STACK_BYTES), OTHER_STACK: bytearray(STACK_BYTES)}
        for address, value in self.words.items():
            base = STACK if address >= STACK else OTHER_STACK
            at = address - base
            stacks[base][at : at + a.word_bytes] = value.to_bytes(a.word_bytes, "little")
        samples = sample_batch([CapturedStack(tuple(values), STACK, bytes(stacks[STACK]))], a)
        other = MemoryRegions([(OTHER_STACK, memoryview(bytes(stacks[OTHER_STACK])))])
        return replace(samples, extra_memory=[other])


@pytest.mark.parametrize("a", ARCHES, ids=lambda a: a.name)
def test_tables_are_consistent(a: Arch) -> None:
    names = [name for r in a.registers for name in (r.name, *r.aliases)]
    numbers = [r.dwarf_number for r in a.registers if r.dwarf_number is not None]
    assert len(set(names)) == len(names) and len(set(numbers)) == len(numbers)
    for slot in (a.pc, a.sp, a.fp, *a.callee_saved, *([] if a.link is None else [a.link])):
        assert a.registers[slot].dwarf_number is not None
    assert a.fp in a.callee_saved and a.sp not in a.callee_saved and a.pc not in a.callee_saved
    assert a.link is None or a.link in a.callee_saved
    returned = a.registers[a.pc if a.link is None else a.link].dwarf_number
    assert a.return_register == returned
    assert re.search(a.call_pattern, bytes(8), re.DOTALL) is None  # zeros are no call
    for frame in a.signal_frames:
        slots = [slot for slot, _ in frame.saved]
        assert {a.pc, a.sp, *a.callee_saved} <= set(slots) and len(set(slots)) == len(slots)


# Each trampoline with where its registers lie and what must stand on the stack for its form (kernel: signal.c).
SIGNALS = [
    ("x86_64", 0, 0, {}),
    ("arm64", 0, 0, {}),
    ("x86", 0, 4, {}),
    ("x86", 1, OTHER_STACK + 0x14 - STACK, {8: OTHER_STACK}),
    *(("arm32", form, 0x0C, {0: 0}) for form in range(5)),
    *(("arm32", form, 0x20, {0: 0x5AC3C35A}) for form in range(5)),
    *(("arm32", form, 0xA0, {0: 0}) for form in range(5, 10)),
    *(("arm32", form, 0xA8, {0: STACK + 0x108}) for form in range(5, 10)),
]


@pytest.mark.parametrize(("name", "form", "base", "words"), SIGNALS)
def test_signal_frames_by_their_code(name: str, form: int, base: int, words: dict[int, int]) -> None:
    """At sp = STACK + 0x100 the trampoline; the interrupted pc lies outside every mapping, on another stack."""
    a = arch(name)
    frame: SignalFrame = a.signal_frames[form]
    sp = STACK + 0x100
    if name == "x86" and form == 1:
        base = OTHER_STACK + 0x14 - sp
    values = {slot: 0x1000 + 8 * i for i, (slot, _) in enumerate(frame.saved)}
    values[a.pc], values[a.sp] = 0xABCDE0, OTHER_STACK + 0x40
    registers = {a.registers[a.pc].name: CODE + 0x100, a.registers[a.sp].name: sp}
    program = Program(a, frame.code, registers=registers)
    program.words = {sp + base + offset: values[slot] for slot, offset in frame.saved}
    program.words |= {sp + offset: value for offset, value in words.items()}
    frames, end = program.run()
    assert frames[:2] == [
        StepFrame(CODE + 0x100, sp, False, Method.REGISTERS),
        StepFrame(0xABCDE0, OTHER_STACK + 0x40, False, Method.SIGNAL),
    ]
    assert end is TraceEnd.NO_MAPPING


CALLS = [
    ("arm64", "01000094", True), ("arm64", "00023fd6", True), ("arm64", "0a0b3fd7", True), ("arm64", "1f093fd6", True),
    ("arm64", "1f2003d5", False), ("arm64", "20021fd6", False), ("arm64", "01000014", False),
    ("arm32", "00f002f8", True), ("arm32", "fff7feff", True), ("arm32", "00bf8047", True), ("arm32", "020000eb", True),
    ("arm32", "020000fb", True), ("arm32", "33ff2fe1", True), ("arm32", "1eff2fe1", False), ("arm32", "00bf7047", False),
    ("x86", "e800000000", True), ("x86", "ffd0", True), ("x86", "ff5508", True), ("x86", "ffe0", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "is_call"), CALLS)
def test_calls_are_recognised_by_their_bytes(name: str, code: str, is_call: bool) -> None:
    """bl, blr, blraa, blraaz · nop, br, b · Thumb bl, blx; ARM bl, blx; bx lr (both) · call, call *, jmp *."""
    before = bytes.fromhex("00bf00bf1f") + bytes.fromhex(code)
    assert (re.search(arch(name).call_pattern, before[-7:], re.DOTALL) is not None) == is_call


@pytest.mark.parametrize(
    ("name", "address", "code", "length"),
    [
        ("x86_64", 0x1001, "e8000000", 1),
        ("arm64", 0x1000, "", 4),
        ("arm32", 0x1001, "00f002f8", 4),  # bl
        ("arm32", 0x1001, "00bf8047", 2),  # nop; blx r0
        ("arm32", 0x1000, "020000eb", 4),  # ARM code
        ("arm32", 0x1001, "", 2),  # unread
        ("arm32", 0x1000, "", 2),
    ],
)
def test_where_the_call_before_a_return_address_begins(
    name: str, address: int, code: str, length: int
) -> None:
    assert arch(name).call_length(address, bytes.fromhex(code)) == length


def test_a_signed_return_address_in_a_frame_record() -> None:
    """arm64, code that cannot be read forward: x29 leads on, and the signature goes."""
    a = arch("arm64")
    call = 0x94000001  # bl
    program = Program(a, struct.pack("<II", call, 0xD61F0100))  # bl; br x8
    record = STACK + 0x80
    program.registers = {"pc": CODE + 0x104, "sp": STACK, "x29": record, "lr": 0}
    signed = 0x0055_5500_0000_0000 | CODE + 0x104
    program.words = {record: STACK + 0x100, record + 8: signed, STACK + 0x100: 0, STACK + 0x108: 0}
    frames, end = program.run()
    assert [f.address for f in frames] == [CODE + 0x104] * 2 and end is TraceEnd.ROOT
    assert frames[1].method is Method.FP


def test_a_given_mask_is_the_one_that_is_used() -> None:
    a = arch("arm64")
    low = Mapping(CODE, CODE + 0x1000, "r-xp", 0, "/code")
    high = Mapping(1 << 46, (1 << 46) + 4096, "r", 0, "")
    # of low addresses alone as NT_ARM_PAC_MASK has it: 39 bits
    for mappings, mask in (([low, high], 0x007F_8000_0000_0000), ([low], 0x007F_FF80_0000_0000)):
        assert Planner(a, [AddressSpace(mappings)], Program(a, b"")).signature_mask(0) == mask
    given = Planner(a, [AddressSpace([low, high])], Program(a, b""), signature_mask=0x7F << 40)
    assert given.signature_mask(0) == 0x7F << 40


@pytest.mark.parametrize("bits", [39, 47, 52])
def test_signatures_begin_where_the_last_mapping_ends(bits: int) -> None:
    """The kernel's page for uprobes ends where user addresses do: it takes no bit more (xol_add_vma() of uprobes.c)."""
    a = arch("arm64")
    page = Mapping((1 << bits) - 4096, 1 << bits, "--xp", 0, "[uprobes]")
    assert Planner(a, [AddressSpace([page])], Program(a, b"")).signature_mask(0) == (1 << 55) - (1 << bits)


def test_a_signed_pc_is_where_it_leads() -> None:
    a = arch("arm64")
    program = Program(
        a, struct.pack("<I", 0xD65F03C0), registers={"pc": 0x0012 << 48 | CODE + 0x100, "sp": STACK, "lr": 0}
    )
    frames, end = program.run()
    assert [f.address for f in frames] == [CODE + 0x100] and end is TraceEnd.ROOT


def test_tags_of_frame_pointers_do_not_count() -> None:
    a = arch("arm64")
    record, tag = STACK + 0x80, 0xB4 << 56
    program = Program(a, struct.pack("<II", 0x94000001, 0xD61F0100))
    program.registers = {"pc": CODE + 0x104, "sp": STACK, "x29": record | tag, "lr": 0}
    program.words = {
        record: STACK + 0x100 | tag,
        record + 8: CODE + 0x104,
        STACK + 0x100: 0,
        STACK + 0x108: 0,
    }
    frames, end = program.run()
    assert [f.sp for f in frames] == [STACK, record + 16] and end is TraceEnd.ROOT


@pytest.mark.parametrize("pc", [0, 0xABCDE0])
def test_a_call_to_nowhere_came_from_the_link_register(pc: int) -> None:
    a = arch("arm64")
    code = struct.pack("<III", 0x94000001, 0xA8C17BFD, 0xD65F03C0)  # bl; ldp x29, x30, [sp], #16; ret
    program = Program(a, code, registers={"pc": pc, "sp": STACK, "lr": CODE + 0x104})
    program.words = {STACK: 0, STACK + 8: CODE + 0x104, STACK + 16: 0, STACK + 24: 0}
    frames, end = program.run()
    assert [(f.address, f.method) for f in frames[:2]] == [(pc, Method.REGISTERS), (CODE + 0x104, Method.LR)]
    assert end is TraceEnd.ROOT


def test_a_link_register_that_leads_nowhere_is_not_believed() -> None:
    a = arch("arm64")
    code = struct.pack("<II", 0xD503201F, 0xD65F03C0)  # nop; ret: behind a nop is no return address
    program = Program(a, code, registers={"pc": 0, "sp": STACK, "lr": CODE + 0x104})
    assert program.run() == ([StepFrame(0, STACK, False, Method.REGISTERS)], TraceEnd.NO_MAPPING)


@pytest.mark.parametrize("name", ["x86_64", "x86"])
def test_a_call_to_nowhere_has_pushed_its_return_address(name: str) -> None:
    a = arch(name)
    code = bytes.fromhex("ffd0" + "5bc3")  # call *%rax; pop %rbx; ret
    pc, sp = (a.registers[slot].name for slot in (a.pc, a.sp))
    program = Program(a, code, registers={pc: 0, sp: STACK})
    program.words = {STACK: CODE + 0x102}
    frames, _ = program.run()
    assert (frames[1].address, frames[1].sp) == (CODE + 0x102, STACK + a.word_bytes)
