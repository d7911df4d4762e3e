"""Return sites of functions, in machine code written out here."""

from __future__ import annotations

from typing import cast

import pytest

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.elf.sections import EM_AARCH64, EM_X86_64
from memleak_android.host.snoop.return_sites import calls_nothing, find_return_sites

PLACE = 0x1000


class Code:
    """As much of ElfFile as is asked: `code` stands at PLACE of the file."""

    def __init__(self, machine: int, code: bytes) -> None:
        self.machine = machine
        self._code = code

    def slice(self, offset: int, size: int) -> bytes:
        return self._code[offset - PLACE : offset - PLACE + size]


def elf(code: str, machine: int = EM_X86_64) -> tuple[ElfFile, int]:
    data = bytes.fromhex(code)
    return cast(ElfFile, Code(machine, data)), len(data)


def test_returns_and_tail_calls() -> None:
    # test edi,edi; je +6; push rbx; pop rbx; jmp far away; ret; bnd-less ret behind it
    code, size = elf("85ff 7407 53 5b e9 00100000 c3")
    sites = find_return_sites(code, PLACE, size, [])
    assert (sites.returns, sites.tails, sites.refusal) == ((PLACE + 11,), (PLACE + 6,), "")


def test_a_pointer_is_a_tail_call_and_a_switch_is_not() -> None:
    code, size = elf("48 63 04 b9 48 01 c8 ff e0 c3")  # movsxd rax,[rcx+rdi*4]; add rax,rcx; jmp rax; ret
    assert find_return_sites(code, PLACE, size, []).tails == ()
    code, size = elf("48 8b 07 ff 60 10")  # mov rax,[rdi]; jmp [rax+0x10]
    assert find_return_sites(code, PLACE, size, []).tails == (PLACE + 3,)


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("85ff 0f84 00100000 c3", "`je` is a conditional jump to another function"),
        ("0f0b", "it never returns"),
        ("c3 0f", "it cannot be decoded"),
    ],
)
def test_refusals(code: str, refusal: str) -> None:
    found = find_return_sites(*elf(code)[:1], PLACE, elf(code)[1], [])
    assert found.refusal == refusal and not found.returns and not found.tails


def test_a_part_that_lies_elsewhere_belongs_to_it() -> None:
    code, _ = elf("85ff 7401 c3 0f0b c3")  # test edi,edi; je +1 into the part at +5; ret | ud2; ret
    assert find_return_sites(code, PLACE, 5, []).refusal
    assert find_return_sites(code, PLACE, 5, [range(PLACE + 5, PLACE + 8)]).returns == (PLACE + 4, PLACE + 7)


def test_arm64() -> None:
    # cbz w0, +12; str x30, [sp, #-16]!; b far away; ret
    code, size = elf("60000034 fe0f1ff8 00040014 c0035fd6", EM_AARCH64)
    sites = find_return_sites(code, PLACE, size, [])
    assert (sites.returns, sites.tails) == ((PLACE + 12,), (PLACE + 8,))


def test_what_calls_nothing() -> None:
    assert calls_nothing(*elf("8d4701 c3")[:1], PLACE, 4)
    code, size = elf("e8 00000000 c3")
    assert not calls_nothing(code, PLACE, size)
