"""Rules read off machine code. Each case carries its disassembly."""

from __future__ import annotations

import pytest

from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.cfi.rules import RuleKind, UnwindRow
from memleak_android.unwind.code.epilogue import Dead, walk_to_return

BASE = 0x1000
EXIT = 0x9000
RBX, RBP, RSP, R12 = 3, 6, 7, 12


def walk(code: str, start: int = 0) -> UnwindRow | Dead:
    data = bytes.fromhex(code)

    def read(vaddr: int, size: int) -> bytes:
        at = vaddr - BASE
        return data[at : at + size] if 0 <= at < len(data) else b""

    return walk_to_return(ARCH, read, BASE + start, frozenset({EXIT}))


def call(at: int, target: int = EXIT) -> str:
    return "e8" + (target - (BASE + at + 5)).to_bytes(4, "little", signed=True).hex()


def slots(row: UnwindRow | Dead) -> dict[int, int | None]:
    """register → offset from the CFA; None: lost."""
    assert isinstance(row, UnwindRow)
    return {
        r.register: r.offset if r.kind is RuleKind.OFFSET else None for r in row.rules if r.register != 16
    }


def cfa(row: UnwindRow | Dead) -> tuple[int, int]:
    assert isinstance(row, UnwindRow)
    return row.cfa_register, row.cfa_offset


def test_pops_and_add() -> None:
    row = walk("4883c418 5b 5d 415c c3")  # add rsp,0x18; pop rbx; pop rbp; pop r12; ret
    assert cfa(row) == (RSP, 0x18 + 24 + 8)
    assert slots(row) == {RBX: -32, RBP: -24, R12: -16}


def test_at_a_functions_entry() -> None:
    row = walk(
        "53 89fb 4883ec10 4883c410 5b c3"
    )  # push rbx; mov ebx,edi; sub rsp,16; add rsp,16; pop rbx; ret
    assert cfa(row) == (RSP, 8)
    assert slots(row) == {RBX: -16}  # below sp: still in the register


@pytest.mark.parametrize("code", ["c9 c3", "4889ec 5d c3", "488d6500 5d c3"], ids=["leave", "mov", "lea"])
def test_frame_pointer(code: str) -> None:
    row = walk(code)  # leave; ret · mov rsp,rbp; pop rbp; ret · lea rsp,[rbp]; pop rbp; ret
    assert cfa(row) == (RBP, 16) and slots(row) == {RBP: -16}


def test_frame_pointer_that_was_overwritten_is_not_believed() -> None:
    assert walk("31ed c9 c3") is Dead.STOPS  # xor ebp,ebp; leave; ret


def test_register_that_is_overwritten_is_lost() -> None:
    assert slots(walk("31db c3")) == {RBX: None}  # xor ebx,ebx; ret


def test_branches_are_tried_both_ways() -> None:
    row = walk("7501 f4 58 c3")  # jne +1; hlt; pop rax; ret
    assert cfa(row) == (RSP, 16)


def test_loop_ends() -> None:
    assert walk("ebfe") is Dead.NO_RETURN  # jmp self


def test_tail_jump_is_followed() -> None:
    row = walk("5b eb02 f4f4 c3")  # pop rbx; jmp +2; hlt; hlt; ret
    assert cfa(row) == (RSP, 16) and slots(row) == {RBX: -16}


def test_thread_start_calls_exit_with_the_result() -> None:
    assert walk("89c7" + call(2)) is Dead.EXITS  # mov edi,eax; call exit


def test_exit_on_an_error_path_is_not_a_thread_start() -> None:
    row = walk("7405" + call(2) + "c3")  # je +5; call exit; ret
    assert cfa(row) == (RSP, 8)


def test_start_code_stops() -> None:
    assert walk("f4") is Dead.STOPS  # hlt: _start after its call
    assert walk("4c89ec 41ffe4") is Dead.STOPS  # mov rsp,r13; jmp r12: the dynamic linker's start


def test_unreadable_code_tells_nothing() -> None:
    assert walk("") is Dead.NO_RETURN
    assert walk("ffe0") is Dead.NO_RETURN  # jmp rax: a switch or a tail call
