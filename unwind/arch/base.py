"""The shape that every architecture table fills."""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Register:
    """One captured register. Its index in Arch.registers is its slot on the wire (struct pt_regs order)."""

    name: str
    dwarf_number: int | None = None  # None: CFI never names it
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SignalFrame:
    """A sigreturn trampoline known by its code bytes.

    saved: (slot, offset): when pc is at `code`, the interrupted value of that register lies at that offset from
    the address that `base` (a DWARF expression) gives; no base: from the stack pointer.
    """

    code: bytes
    saved: tuple[tuple[int, int], ...]
    base: bytes = b""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The distance from a call to its return address, for one call instruction form.

    low_bits: the bits of the return address outside Arch.instruction_mask (1 after a call from Thumb code).
    pattern: regular expression over the code bytes before the return address; empty: matches unread code too.
    """

    length: int
    low_bits: int = 0
    pattern: bytes = b""


@dataclass(frozen=True, slots=True)
class Arch:
    """Properties of an architecture, as data. Slots are indices into `registers`.

    callee_saved: slots that keep their value over a call when CFI has no rule for them.
    call_pattern: regular expression over the bytes before a return address, true where they end with a call.
    link: the register that holds the return address on entry to a function; None: a call pushes it.
    instruction_mask: bits of a pc that are the address (the others select the instruction set).
    address_bits: of a data address; the bits above are a tag.
    signature_mask: bits of a return address that may hold a signature (arm64 PAC). In a process only those above its
        addresses do: AddressSpace.signature_mask().
    has_frame_records: whether code that keeps a frame pointer keeps it in `fp`, whatever its instruction set.
    chain_slots: by the lowest bit of a pc the register that leads to its code's frame records; (): always `fp`.
    has_epilogue_rules: whether CFI also holds while a function takes its frame down.
    call_forms: the first that fits says where the call before a return address begins.
    u64_alignment: of a 64-bit number in a structure, bytes.
    """

    name: str
    elf_machine: int
    word_bytes: int
    registers: tuple[Register, ...]
    pc: int
    sp: int
    fp: int
    return_register: int  # DWARF number
    callee_saved: tuple[int, ...]
    signal_frames: tuple[SignalFrame, ...] = ()
    call_pattern: bytes = b""
    link: int | None = None
    instruction_mask: int = 0xFFFF_FFFF_FFFF_FFFF
    address_bits: int = 64
    signature_mask: int = 0
    has_frame_records: bool = True
    chain_slots: tuple[int, ...] = ()
    has_epilogue_rules: bool = True
    call_forms: tuple[CallForm, ...] = (CallForm(1),)
    u64_alignment: int = 8
    slot_of_dwarf: dict[int, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        slots = {r.dwarf_number: i for i, r in enumerate(self.registers) if r.dwarf_number is not None}
        object.__setattr__(self, "slot_of_dwarf", slots)

    def slot(self, name: str) -> int:
        """The slot of a register by name or alias. KeyError when there is none."""
        for i, register in enumerate(self.registers):
            if name == register.name or name in register.aliases:
                return i
        raise KeyError(name)

    def dwarf_of(self, slot: int) -> int:
        """The DWARF number of a register that CFI names."""
        number = self.registers[slot].dwarf_number
        assert number is not None
        return number

    @property
    def word_mask(self) -> int:
        return (1 << 8 * self.word_bytes) - 1

    @property
    def frame_record(self) -> tuple[int, int, int]:
        """From the frame pointer: offsets of the saved frame pointer and of the return address, bytes to the CFA."""
        return 0, self.word_bytes, 2 * self.word_bytes

    def call_length(self, return_address: int, code_before: bytes) -> int:
        """Bytes from the start of a call to its return address. code_before: what is known of the code there."""
        low_bits = return_address & ~self.instruction_mask
        for form in self.call_forms:
            if form.low_bits == low_bits and (
                not form.pattern or re.search(form.pattern, code_before, re.DOTALL)
            ):
                return form.length
        return 1

    def __hash__(self) -> int:
        return hash(self.name)
