"""Where a patched function leads to, and the few instructions on the way there that stand before its moved ones.

A function of the heap has an entry of its own in the shim. Those of --pairs share one, which a stub tells of the call: by
which number, and where the function's own first instructions are now. The stub changes nothing else that the function may
look at, since its callers may rely on all registers that it leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_NUMBER_SHIFT = 56  # ML_PAIR_CALL_SHIFT, device/preload/entries/pair_entries.h


@dataclass(frozen=True, slots=True)
class Landing:
    """address: of the shim's entry. number: of the function among those of --pairs, None for one of the heap's own entries."""

    address: int
    number: int | None = None

    def call(self, original: int) -> int:
        """What the entry is told: the function's number, and where it goes on."""
        return (self.number or 0) << _NUMBER_SHIFT | original


@dataclass(frozen=True, slots=True)
class Stub:
    """What stands in an island. pad: where an indirect jump may arrive. call: code for the entry's address and for what it is
    told, of the same size always. scratch: registers that it changes.
    """

    pad: bytes
    call: Callable[[int, int], bytes]
    scratch: frozenset[str]


def _x86_64(entry: int, call: int) -> bytes:
    """movl $…, -64(%rsp); movl $…, -60(%rsp); jmp *0(%rip): below the stack pointer 128 bytes are ours (psABI §3.2.2)."""
    word = call.to_bytes(8, "little")
    halves = bytes.fromhex("c74424c0") + word[:4] + bytes.fromhex("c74424c4") + word[4:]
    return halves + bytes.fromhex("ff2500000000") + entry.to_bytes(8, "little")


def _arm64(entry: int, call: int) -> bytes:
    """ldr x17, #12; ldr x16, #16; br x16, and both values: x16 and x17 hold nothing at an entry (AAPCS64 §6.1.1)."""
    words = (0x58000071, 0x58000090, 0xD61F0200)
    code = b"".join(word.to_bytes(4, "little") for word in words)
    return code + call.to_bytes(8, "little") + entry.to_bytes(8, "little")


X86_64_STUB = Stub(bytes.fromhex("f30f1efa"), _x86_64, frozenset())  # endbr64
ARM64_STUB = Stub(bytes.fromhex("5f2403d5"), _arm64, frozenset(("x17",)))  # bti c
