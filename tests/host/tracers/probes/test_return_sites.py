"""Return sites of functions, in machine code written out here and in compiled libraries."""

import shutil
import subprocess
from pathlib import Path
from typing import cast

import pytest

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.tracers.probes.function_extents import FunctionExtents
from memleak_android.host.tracers.probes.return_sites import calls_nothing, find_exits, find_return_sites
from memleak_android.unwind.elf_headers import EM_AARCH64, EM_X86_64

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


@pytest.mark.parametrize(
    ("machine", "code", "returns", "tails", "refusal"),
    [
        # test edi,edi; je +6; push rbx; pop rbx; jmp far away; ret; bnd-less ret behind it
        (EM_X86_64, "85ff 7407 53 5b e9 00100000 c3", [11], [6], ""),
        # a switch: movsxd rax,[rcx+rdi*4]; add rax,rcx; jmp rax; ret
        (EM_X86_64, "48 63 04 b9 48 01 c8 ff e0 c3", [9], [], ""),
        # a pointer: mov rax,[rdi]; jmp [rax+0x10]
        (EM_X86_64, "48 8b 07 ff 60 10", [], [3], ""),
        # an argument: test rsi,rsi; je +2; jmp rsi; ret
        (EM_X86_64, "48 85 f6 74 02 ff e6 c3", [7], [5], ""),
        # a constant: mov eax,0x1000; jmp rax
        (EM_X86_64, "b8 00100000 ff e0", [], [5], ""),
        # a vectorcall: push rbx; mov rax,[rdi+rcx]; pop rbx; jmp rax
        (EM_X86_64, "53 48 8b 04 0f 5b ff e0", [], [6], ""),
        (EM_X86_64, "e9 00100000", [], [], "it is a jump to another function"),
        # cbz w0, +12; str x30, [sp, #-16]!; b far away; ret
        (EM_AARCH64, "60000034 fe0f1ff8 00040014 c0035fd6", [12], [8], ""),
        (EM_X86_64, "85ff 0f84 00100000 c3", [], [], "`je` is a conditional jump to another function"),
        (EM_X86_64, "0f0b", [], [], "it never returns"),
        (EM_X86_64, "c3 0f", [], [], "it cannot be decoded"),
    ],
)
def test_returns_and_tail_calls(
    machine: int, code: str, returns: list[int], tails: list[int], refusal: str
) -> None:
    file, size = elf(code, machine)
    found = find_return_sites(file, PLACE, size, [])
    assert found.refusal == refusal
    assert [at - PLACE for at in found.returns] == returns and [at - PLACE for at in found.tails] == tails


def test_a_part_that_lies_elsewhere_belongs_to_it() -> None:
    code, _ = elf("85ff 7401 c3 0f0b c3")  # test edi,edi; je +1 into the part at +5; ret | ud2; ret
    assert find_return_sites(code, PLACE, 5, []).refusal
    assert find_return_sites(code, PLACE, 5, [range(PLACE + 5, PLACE + 8)]).returns == (PLACE + 4, PLACE + 7)


def test_what_calls_nothing() -> None:
    assert calls_nothing(elf("8d4701 c3")[0], PLACE, 4)
    assert not calls_nothing(elf("e8 00000000 c3")[0], PLACE, 6)


# `ends` jumps to a function of another file, `own` to one of its own by a stub, `split` to a part of its own without a symbol.
TAIL_CALLS = """
int other(int);
__attribute__((cold, noinline, noreturn)) void fails(void) { for (;;) other(0); }
int called(int x) { return x * 3; }
int ends(int x) { return other(x + 1); }
int own(int x) { return called(x + 2); }
int split(int x) { if (__builtin_expect(x == 7, 0)) fails(); return other(x) + 1; }
"""


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc"])
def test_where_calls_that_end_in_other_functions_end(tmp_path: Path, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source, library = tmp_path / "tails.c", tmp_path / "libtails.so"
    source.write_text(TAIL_CALLS)
    subprocess.run([compiler, "-O2", "-fPIC", "-shared", "-s", "-o", library, source], check=True)
    elf = ElfFile(library)
    symbols = {one.name: one for one in elf.dynamic_functions({"ends", "own", "split", "called"})}

    def exits_of(name: str, known: tuple[str, ...] = ()) -> tuple[list[str], tuple[str, ...], str]:
        """The functions with its exits, what it goes on in, and the refusal."""
        symbol = symbols[name]
        offset = elf.file_offset(symbol.vaddr)
        assert offset is not None
        found = find_exits(elf, offset, symbol.size, FunctionExtents(elf), known)
        holders = [
            one.name
            for at in found.returns
            for one in symbols.values()
            if 0 <= at - (elf.file_offset(one.vaddr) or 0) < one.size
        ]
        assert len(holders) == len(found.returns)
        return holders, found.continued_in, found.refusal

    assert exits_of("ends") == ([], ("other",), "")
    assert exits_of("own") == (["called"], (), "")
    assert exits_of("own", ("called",)) == ([], ("called",), "")
    assert exits_of("split") == (["split"], (), "")
