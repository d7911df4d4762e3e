"""Valid locations of an entry probe: one small function per rule, in bytes.

The comment of each instruction is its disassembly; offsets in the names of the cases are those expected.
"""

import numpy as np
import pytest

from memleak_android.host.tracers.probes.arch import X86_64, is_emulated
from memleak_android.host.tracers.probes.placement import SINGLE_STEPPED, jumps_from_outside, place_entry
from memleak_android.unwind.code.disassembly import decode_x86_64

ENDBR64 = "f30f1efa"
TEST_RDI = "4885ff"  # test rdi, rdi
PUSH_RBP = "55"
PUSH_R12 = "4154"
SUB_RSP = "4883ec18"  # sub rsp, 0x18
MOV_RBX_RDI = "4889fb"
MOV_RDI_RSI = "4889f7"
MOV_RAX_RDI = "4889f8"
XOR_EAX = "31c0"
LOAD = "488b07"  # mov rax, [rdi]
STORE = "488906"  # mov [rsi], rax
SYSCALL = "0f05"
CALL = "e800000000"
POP_RBP = "5d"
RET = "c3"

RDI = frozenset({"rdi"})


def je(displacement: int) -> str:
    return "74" + displacement.to_bytes(1, "little", signed=True).hex()


def jmp(displacement: int) -> str:
    return "eb" + displacement.to_bytes(1, "little", signed=True).hex()


def function(*instructions: str) -> bytes:
    return bytes.fromhex("".join(instructions))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("50", True), ("57", True), ("4150", True), ("4157", True),  # push of any register
        ("4850", False),  # push with REX.W: another prefix than the kernel knows
        ("ff37", False), ("6a01", False),  # push of memory, of a constant
        ("58", False),  # pop
        ("90", True), ("6690", True),
        ("0f1f00", False), (ENDBR64, False),  # single-stepped by kernels before 6.17
        ("f390", False),  # pause
        ("7400", True), ("7f00", True), ("0f8400000000", True), ("0f8f00000000", True),
        ("eb00", True), ("e900000000", True), ("e800000000", True),
        ("0f9400", False),  # sete
        ("66e800000000", False), ("660f8400000000", False),  # refused by the kernel
        ("f2e800000000", False), ("3e7400", False),  # prefixed: not relied on
        ("e200", False), ("e300", False),  # loop, jrcxz
        ("ffe0", False), ("c3", False), (SUB_RSP, False), (MOV_RBX_RDI, False),
    ],
)  # fmt: skip
def test_what_the_kernel_emulates(code: str, expected: bool) -> None:
    assert is_emulated(next(decode_x86_64(bytes.fromhex(code) + b"\0" * 8))) is expected


MOVES = {
    "push first": (0, (PUSH_RBP, SUB_RSP, RET)),
    "push first, whatever follows": (0, (PUSH_RBP, jmp(-3))),
    "endbr64, push": (4, (ENDBR64, PUSH_RBP, POP_RBP, RET)),
    "endbr64, push r12": (4, (ENDBR64, PUSH_R12, "415c", RET)),
    "glibc 2.36 free: test, je ret, push": (5, (TEST_RDI, je(3), PUSH_RBP, POP_RBP, RET, RET)),
    "two exits without effect": (5, (TEST_RDI, je(5), je(3), PUSH_RBP, POP_RBP, RET, RET)),
    "an exit that clears the result": (5, (TEST_RDI, je(3), PUSH_RBP, POP_RBP, RET, XOR_EAX, RET)),
    "arguments copied, not changed": (3, (MOV_RAX_RDI, PUSH_RBP, POP_RBP, RET)),
    "argument loaded through": (3, (LOAD, PUSH_RBP, POP_RBP, RET)),
    "musl free: test, je ret, jmp": (5, (TEST_RDI, je(2), jmp(0x40), RET)),
    "a tail jump": (4, (ENDBR64, "e900100000")),
    "a later loop, not to here": (3, (MOV_RAX_RDI, PUSH_RBP, "48ffc8", "75fb", POP_RBP, RET)),
    "a tail call through a pointer": (4, (ENDBR64, PUSH_RBP, "488b0500100000", POP_RBP, "ffe0")),
    "a tail call through the GOT": (4, (ENDBR64, PUSH_RBP, POP_RBP, "ff2500100000")),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_to(name: str) -> None:
    offset, code = MOVES[name]
    placement = place_entry(X86_64, function(*code), RDI, skip_no_op=True)
    assert (placement.offset, placement.cost) == (offset, X86_64.cheap), placement.reason


STAYS = {
    "`sub rsp, 0x18` changes rsp": (SUB_RSP, PUSH_RBP, RET),
    "`mov rbx, rdi` changes rbx": (MOV_RBX_RDI, PUSH_RBP, RET),
    "`mov rdi, rsi` overwrites the argument in rdi": (MOV_RDI_RSI, PUSH_RBP, RET),
    "`xor edi, edi` overwrites the argument in rdi": ("31ff", PUSH_RBP, RET),
    "`mov qword ptr [rsi], rax` writes memory": (STORE, PUSH_RBP, RET),
    "`lock dec dword ptr [rsi]` writes memory": ("f0ff0e", PUSH_RBP, RET),
    "`syscall` ends its straight-line entry": (XOR_EAX, SYSCALL, PUSH_RBP, RET),
    "`ret` ends its straight-line entry": (XOR_EAX, RET, PUSH_RBP),
    "`jmp rax` at +0x6 may go anywhere in it": (MOV_RAX_RDI, "4801f8", "ffe0", PUSH_RBP, RET),
    "+0x4 is jumped to": (ENDBR64, PUSH_RBP, jmp(-3), RET),
    "+0x2 is jumped to": (ENDBR64, PUSH_RBP, jmp(-5), RET),  # into the middle of an instruction before it
    "+0x5 cannot be decoded": (ENDBR64, PUSH_RBP, "06", RET),
    "no instruction in its first 64 bytes is emulated": (XOR_EAX,) * 32 + (PUSH_RBP, RET),
    "its bytes are not known or not code": (),
}


@pytest.mark.parametrize("reason", STAYS)
def test_stays_at_the_entry(reason: str) -> None:
    placement = place_entry(X86_64, function(*STAYS[reason]), RDI)
    assert (placement.offset, placement.cost, placement.reason) == (0, SINGLE_STEPPED, reason)


def test_a_switch_keeps_the_probe_at_the_entry() -> None:
    code = function(ENDBR64, PUSH_RBP, "3e" + "ff24c5" + "00100000")  # notrack jmp [rax*8 + 0x1000]
    assert place_entry(X86_64, code, RDI).offset == 0


def test_only_the_arguments_asked_for_matter() -> None:
    code = function("4889c6", PUSH_RBP, RET)  # mov rsi, rax
    assert place_entry(X86_64, code, RDI).offset == 3
    assert place_entry(X86_64, code, frozenset({"rdi", "rsi"})).offset == 0


SKIPS = {
    "calls": (CALL, RET),
    "jumps": (jmp(0x30),),
    "writes": (STORE, RET),
    "enters the kernel": (SYSCALL, RET),
    "moves the stack pointer": (POP_RBP, RET),
    "does not end": (),
    "is too long": ("48ffc0",) * 16 + (RET,),
}


@pytest.mark.parametrize("name", SKIPS)
def test_an_exit_with_an_effect_is_not_passed(name: str) -> None:
    code = function(TEST_RDI, je(3), PUSH_RBP, POP_RBP, RET, *SKIPS[name])
    placement = place_entry(X86_64, code, RDI, skip_no_op=True)
    # on the branch itself: every call comes there
    assert (placement.offset, placement.cost) == (3, X86_64.cheap)


def test_a_branch_out_of_the_function_is_not_passed() -> None:
    assert place_entry(X86_64, function(TEST_RDI, je(0x40), PUSH_RBP, RET), RDI, skip_no_op=True).offset == 3


def test_calls_without_effect_are_kept_unless_asked() -> None:
    code = function(*MOVES["glibc 2.36 free: test, je ret, push"][1])
    assert place_entry(X86_64, code, RDI).offset == 3
    assert place_entry(X86_64, code, RDI, skip_no_op=True).offset == 5


def test_jumped_to_from_outside() -> None:
    code = function(ENDBR64, PUSH_RBP, POP_RBP, RET)
    assert place_entry(X86_64, code, RDI, jumped_to=[4]).reason == "+0x4 is jumped to"
    assert place_entry(X86_64, code, RDI, jumped_to=[2]).offset == 0
    assert place_entry(X86_64, code, RDI, jumped_to=[5]).offset == 4


def test_a_function_too_long_to_judge() -> None:
    placement = place_entry(X86_64, function(ENDBR64, PUSH_RBP) + b"\x90" * (64 << 10), RDI)
    assert (placement.offset, placement.reason) == (0, "it is longer than 65536 bytes")


@pytest.mark.parametrize(
    ("code", "at", "target"),
    [
        ("eb{:02x}", 150, 204), ("74{:02x}", 260, 203), ("e2{:02x}", 260, 201), ("e8{:08x}", 0, 204),
        ("e9{:08x}", 900, 263), ("0f85{:08x}", 5, 204), ("0f8c{:08x}", 994, 204),
    ],
)  # fmt: skip
def test_jumps_into_the_entry_are_found(code: str, at: int, target: int) -> None:
    text = bytearray(b"\xcc" * 1000)
    size = len(bytes.fromhex(code.format(0)))
    width = 1 if size == 2 else 4
    displacement = (target - at - size).to_bytes(width, "little", signed=True)
    text[at : at + size] = bytes.fromhex(code.format(0))[:-width] + displacement
    end = 280 if at != 260 else 250
    assert outside(text, (200, end)) == [{target - 200}]
    assert outside(text, (target, target + 60)) == [set()]  # to the entry itself: no harm


def outside(text: bytearray, *functions: tuple[int, int]) -> list[set[int]]:
    return jumps_from_outside(X86_64, np.frombuffer(bytes(text), dtype=np.uint8), functions)


def test_jumps_of_the_function_itself_are_left_to_the_decoder() -> None:
    text = bytearray(b"\xcc" * 400)
    text[210:212] = function(jmp(-8))
    assert outside(text, (200, 220)) == [set()]
    assert outside(text) == []
    assert outside(bytearray(b"\xeb"), (0, 1)) == [set()]


def test_what_looks_like_a_jump_inside_another_function() -> None:
    """glibc 2.36: the last bytes of valloc's `mov rdi, [rax + 0x18]` read as a jump to pvalloc+4."""
    text = bytearray(b"\xcc" * 400)
    text[100:106] = function("488b7818", "5d", "c3")  # 78 18: js +0x18, if it were one
    callee = 102 + 2 + 0x18 - 4
    assert outside(text, (callee, callee + 20)) == [{4}]
    assert outside(text, (callee, callee + 20), (100, 106)) == [set(), set()]


def test_jumps_across_the_pieces_in_which_text_is_read() -> None:
    size = 4 << 20
    for at in (size - 6, size - 5, size - 2, size - 1, size, size + 1):
        text = bytearray(b"\xcc" * (size + 64))
        text[at : at + 6] = b"\x0f\x84" + (204 - at - 6).to_bytes(4, "little", signed=True)
        assert outside(text, (200, 280)) == [{4}], at
