"""The shim's entry that a patched function leads to, and the stub in front of it.

A function of the heap has its own entry in the shim. Functions of --pairs share one. Their stub passes the function's number
and the address of its moved instructions, and changes no register that the function or its callers may read.
"""

from collections.abc import Callable
from dataclasses import dataclass

_NUMBER_SHIFT = 56  # ML_PAIR_CALL_SHIFT, device/preload/entries/pair_entries.h


@dataclass(frozen=True, slots=True)
class Landing:
    """address: of the shim's entry. number: of the function of --pairs, None for the heap."""

    address: int
    number: int | None = None

    def call(self, original: int) -> int:
        """The word that the stub passes: the function's number, and the address at which it continues."""
        return (self.number or 0) << _NUMBER_SHIFT | original


@dataclass(frozen=True, slots=True)
class Stub:
    """The stub of an architecture.

    pad: landing pad for an indirect jump.
    call: code for (entry, word), always of the same size.
    scratch: registers that it changes.
    """

    pad: bytes
    call: Callable[[int, int], bytes]
    scratch: frozenset[str]


def _x86_64(entry: int, call: int) -> bytes:
    """movl $…, -64(%rsp); movl $…, -60(%rsp); jmp *0(%rip): the red zone has 128 bytes (psABI §3.2.2)."""
    word = call.to_bytes(8, "little")
    halves = bytes.fromhex("c74424c0") + word[:4] + bytes.fromhex("c74424c4") + word[4:]
    return halves + bytes.fromhex("ff2500000000") + entry.to_bytes(8, "little")


def _arm64(entry: int, call: int) -> bytes:
    """ldr x17, #12; ldr x16, #16; br x16, both values: x16 and x17 are free at an entry (AAPCS64 §6.1.1)."""
    words = (0x58000071, 0x58000090, 0xD61F0200)
    code = b"".join(word.to_bytes(4, "little") for word in words)
    return code + call.to_bytes(8, "little") + entry.to_bytes(8, "little")


X86_64_STUB = Stub(bytes.fromhex("f30f1efa"), _x86_64, frozenset())  # endbr64
ARM64_STUB = Stub(bytes.fromhex("5f2403d5"), _arm64, frozenset(("x17",)))  # bti c
