"""Rules read off machine code. Each case carries its disassembly."""

import pytest

from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.cfi.rules import RuleKind, UnwindRow
from memleak_android.unwind.code.epilogue import Dead, walk_to_return

BASE = 0x1000
EXIT = 0x9000
RBX, RBP, RSP, R12, RIP = 3, 6, 7, 12, 16


def walk(code: str, start: int = 0) -> UnwindRow | Dead:
    data = bytes.fromhex(code)

    def read(vaddr: int, size: int) -> bytes:
        at = vaddr - BASE
        return data[at : at + size] if 0 <= at < len(data) else b""

    return walk_to_return(ARCH, read, BASE + start, frozenset({EXIT}).__contains__)


def call(at: int, target: int = EXIT) -> str:
    return "e8" + (target - (BASE + at + 5)).to_bytes(4, "little", signed=True).hex()


# code, with its disassembly behind; CFA; register → offset of its slot from the CFA, None where it is lost
ROWS: list[tuple[str, tuple[int, int], dict[int, int | None]]] = [
    # add rsp,0x18; pop rbx; pop rbp; pop r12; ret
    ("4883c418 5b 5d 415c c3", (RSP, 0x18 + 24 + 8), {RBX: -32, RBP: -24, R12: -16}),
    # push rbx; mov ebx,edi; sub rsp,16; add rsp,16; pop rbx; ret: the slot is below sp, still in the register
    ("53 89fb 4883ec10 4883c410 5b c3", (RSP, 8), {RBX: -16}),
    ("c9 c3", (RBP, 16), {RBP: -16}),  # leave; ret
    ("4889ec 5d c3", (RBP, 16), {RBP: -16}),  # mov rsp,rbp; pop rbp; ret
    ("488d6500 5d c3", (RBP, 16), {RBP: -16}),  # lea rsp,[rbp]; pop rbp; ret
    ("31db c3", (RSP, 8), {RBX: None}),  # xor ebx,ebx; ret
    ("7501 f4 58 c3", (RSP, 16), {}),  # jne +1; hlt; pop rax; ret: branches are tried both ways
    ("5b eb02 f4f4 c3", (RSP, 16), {RBX: -16}),  # pop rbx; jmp +2; hlt; hlt; ret: a tail jump is followed
    ("7405" + call(2) + "c3", (RSP, 8), {}),  # je +5; call exit; ret: an error path is not a thread's start
]


@pytest.mark.parametrize(("code", "cfa", "slots"), ROWS)
def test_rules_read_off_code(code: str, cfa: tuple[int, int], slots: dict[int, int | None]) -> None:
    row = walk(code)
    assert isinstance(row, UnwindRow) and (row.cfa_register, row.cfa_offset) == cfa
    rules = [rule for rule in row.rules if rule.register != RIP]
    assert {r.register: r.offset if r.kind is RuleKind.OFFSET else None for r in rules} == slots


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("31ed c9 c3", Dead.STOPS),  # xor ebp,ebp; leave; ret: a frame pointer that was overwritten
        ("ebfe", Dead.NO_RETURN),  # jmp self
        ("89c7" + call(2), Dead.EXITS),  # mov edi,eax; call exit: a thread's start
        # __start_context: mov rsp,rbx; test rdi,rdi; je +8; call; mov rdi,rax; call exit; hlt
        ("4889dc 4885ff 7408" + call(8, 0x100) + "4889c7" + call(16) + "f4", Dead.EXITS),
        ("f4", Dead.STOPS),  # hlt: _start after its call
        ("4c89ec 41ffe4", Dead.STOPS),  # mov rsp,r13; jmp r12: the dynamic linker's start
        # V8's CEntry: je +8; leave; pop rcx; lea rsp,[r15+8]; push rcx; ret; jmp self
        ("7408 c9 59 498d6708 51 c3 ebfe", Dead.USES_FRAME_POINTER),
        ("", Dead.NO_RETURN),
        ("ffe0", Dead.NO_RETURN),  # jmp rax: a switch or a tail call
    ],
)
def test_code_that_tells_nothing(code: str, why: Dead) -> None:
    assert walk(code) is why
