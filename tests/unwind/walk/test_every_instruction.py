"""A program stepped from its first instruction: at each one the unwinder must find exactly the return
addresses that its call instructions pushed. The oracle is the processor, not another reader of CFI."""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from memleak_android.unwind import AddressSpace, Method, TraceEnd, unwind_batch
from memleak_android.unwind.arch.x86_64 import ARCH
from tests.support.builders.cfi_assembler import op
from tests.support.builders.small_library import BASE, CODE_VADDR, FUNCTION, STACK, X86_64, filled, unwind
from tests.support.stack_capture import (
    CapturedStack,
    FileModules,
    parse_maps,
    read_registers,
    sample_batch,
    single_step,
    traced_child,
)

PROGRAM = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
static int order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
__attribute__((noinline)) static long deep(long n, volatile long *sum)
{
	char room[n % 40 + 1];
	memset(room, (int)n, sizeof room);
	*sum += room[n % sizeof room];
	return n == 0 ? 0 : 1 + deep(n - 1, sum) + (sum[0] & 1);
}
int main(int argc, char **argv)
{
	volatile long sum = argc;
	char *words[] = {"tick", "alpha", "omega", "mid", "beta", argv[0]};
	qsort(words, 6, sizeof words[0], order);
	char text[100];
	snprintf(text, sizeof text, "%s %ld %g", words[2], deep(6, &sum), 1.5 * argc);
	char *copy = strdup(text);
	free(copy);
	return 0;
}
"""
STEPS_MAX = 400_000
STEP_KEPT = 5  # every fifth instruction is captured: coprime to most loop lengths


def is_call(code: bytes) -> bool:
    """Near calls of x86_64: e8, ff /2, with prefixes notrack, bnd and REX."""
    code = code.lstrip(b"\x3e\xf2\x66\x67")
    if code and code[0] & 0xF0 == 0x40:
        code = code[1:]
    return code[:1] == b"\xe8" or (code[:1] == b"\xff" and code[1] >> 3 & 7 == 2)


@dataclass(frozen=True)
class Stepped:
    """truths: for each stack the return addresses then on it, innermost first."""

    stacks: list[CapturedStack]
    truths: list[list[int]]
    spaces: list[AddressSpace]
    modules: FileModules


def build(folder: Path, compiler: str) -> str:
    (folder / "program.c").write_text(PROGRAM)
    program = folder / "program"
    # With a libc of its own: in the one that all share another tracer's probes may stand, whose instructions
    # the kernel steps in an unreadable page.
    libc = subprocess.run(
        [compiler, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True
    )
    shutil.copy(libc.stdout.strip(), folder)
    flags = ("-O2", "-fomit-frame-pointer", f"-Wl,-rpath,{folder}")
    subprocess.run([compiler, *flags, "-o", program, folder / "program.c"], check=True)
    return str(program)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Stepped:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (apt-get install gcc)")
    return step_through(build(tmp_path_factory.mktemp("stepped"), compiler))


def step_through(program: str) -> Stepped:
    """Captured stacks of a run, with their truths."""
    pid = traced_child([program])
    stacks: list[CapturedStack] = []
    truths: list[list[int]] = []
    spaces: list[AddressSpace] = []
    shadow: list[tuple[int, int]] = []  # (address of the slot, return address)
    maps_text, code = "", {}
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        maps = Path(f"/proc/{pid}/maps")

        def read(address: int, size: int) -> bytes:
            return os.pread(memory.fileno(), size, address)

        try:
            registers = read_registers(pid)
            for step in range(STEPS_MAX):
                ip, sp = registers[16], registers[19]
                instruction = code.get(ip) or code.setdefault(ip, read(ip, 12))
                if instruction[:2] == b"\x0f\x05" or not spaces:  # after a system call mappings may differ
                    text = maps.read_text()
                    if text != maps_text:
                        maps_text = text
                        spaces.append(parse_maps(text))
                if step % STEP_KEPT == 0:
                    mapping = spaces[-1].find(sp)
                    assert mapping is not None
                    stacks.append(
                        CapturedStack(registers, sp, read(sp, mapping.end - sp), space=len(spaces) - 1)
                    )
                    truths.append([back for _, back in reversed(shadow)])
                before = instruction
                if not single_step(pid):
                    break
                registers = read_registers(pid)
                sp = registers[19]
                if is_call(before):
                    shadow.append((sp, int.from_bytes(read(sp, 8), "little")))
                else:
                    while shadow and shadow[-1][0] < sp:
                        shadow.pop()
        finally:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return Stepped(stacks, truths, spaces, FileModules())


def test_every_stack_is_exact(stepped: Stepped) -> None:
    traces = unwind_batch(sample_batch(stepped.stacks), stepped.spaces, stepped.modules)
    wrong = []
    for i, truth in enumerate(stepped.truths):
        frames = traces.address[traces.offsets[i] : traces.offsets[i + 1]].tolist()
        if not has_row(stepped, i):
            # the code of crtbegin has no CFI: outer frames may be missing, none may be made up or left out
            assert frames[1:] == truth[: len(frames) - 1]
        elif frames[1:] != truth or traces.end[i] != TraceEnd.ROOT:
            wrong.append((hex(frames[0]), TraceEnd(traces.end[i]).name, [hex(x) for x in frames[1:]], truth))
    share = len(wrong) / len(stepped.truths)
    assert not wrong, f"{len(wrong)} of {len(stepped.truths)} ({share:.2%}) stacks are wrong: {wrong[:5]}"
    assert int(np.max(traces.offsets[1:] - traces.offsets[:-1])) > 8


def has_row(stepped: Stepped, i: int) -> bool:
    stack = stepped.stacks[i]
    mapping = stepped.spaces[stack.space].find(stack.registers[16])
    module = mapping and stepped.modules.module(stack.space, mapping)
    assert mapping is not None and module is not None
    return module.table.row_at(module.vaddr_of(mapping, stack.registers[16])) is not None


@pytest.mark.proof
def test_a_libc_without_cfi(tmp_path: Path) -> None:
    """musl: from main on, stacks are complete by its machine code alone, and nothing is ever made up."""
    compiler = shutil.which("musl-gcc")
    if compiler is None:
        pytest.skip("no musl (apt-get install musl-tools)")
    stepped = step_through(build(tmp_path, compiler))
    samples = sample_batch(stepped.stacks)
    traces = unwind_batch(samples, stepped.spaces, stepped.modules)
    started = complete = 0
    for i, truth in enumerate(stepped.truths):
        frames = traces.address[traces.offsets[i] : traces.offsets[i + 1]].tolist()
        assert frames[1:] == truth[: len(frames) - 1]
        if traces.end[i] == TraceEnd.ROOT:
            # musl's start calls exit(main()): the stack ends there with ROOT
            assert frames[1:] in (truth, truth[:-1]), [hex(x) for x in frames]
        if len(truth) > 2 and is_program(stepped, i, truth[-1]) and is_program(stepped, i, truth[-3]):
            started += 1
            complete += traces.end[i] == TraceEnd.ROOT
    assert started > 500
    assert complete / started > 0.98


def is_program(stepped: Stepped, i: int, address: int) -> bool:
    mapping = stepped.spaces[stepped.stacks[i].space].find(address)
    return mapping is not None and mapping.path.endswith("/program")


FRAME = ARCH.signal_frames[0]
SLOTS = dict(FRAME.saved)
TRAMPOLINE = bytes.fromhex("48c7c00f0000000f05")  # mov $15, %rax; syscall


def stack(words: dict[int, int]) -> list[int]:
    """words: by their distance from the stack pointer."""
    return [words.get(at, 0) for at in range(0, max(words) + 8, 8)]


def test_a_handler_without_rules_returns_to_a_trampoline_that_no_call_stands_before(tmp_path: Path) -> None:
    handler, trampoline, interrupted = (BASE + CODE_VADDR + i * FUNCTION for i in range(3))
    elf = bytearray(filled([None, None, [op(0x07, 16)]], code=b"\x90" * 7 + b"\xc3"))  # nop …; ret
    at = CODE_VADDR + FUNCTION
    elf[at : at + 9] = TRAMPOLINE
    words = stack({0: trampoline, **{8 + offset: 0x5000 + slot for slot, offset in FRAME.saved}})
    words[1 + SLOTS[ARCH.pc] // 8] = interrupted + 0x10
    frames, end = unwind(tmp_path, X86_64, bytes(elf), {"rip": handler + 2}, words)
    assert [(f.lookup, f.method) for f in frames] == [
        (handler + 2, Method.REGISTERS),
        (trampoline, Method.PROLOGUE),
        (interrupted + 0x10, Method.SIGNAL),
    ]
    assert frames[2].sp == 0x5000 + ARCH.sp and end is TraceEnd.ROOT


@pytest.mark.parametrize(("rules", "method"), [([], Method.SIGNAL), ([op(0x0E, 24)], Method.EH_FRAME)])
def test_a_trampolines_code_is_believed_over_rules_that_know_of_no_frame(
    tmp_path: Path, rules: list[bytes], method: Method
) -> None:
    """Rules of an entry are what an assembler gives an undescribed trampoline; others were written on purpose."""
    elf = bytearray(filled([rules, [], [op(0x07, 16)]]))
    elf[CODE_VADDR + 8 : CODE_VADDR + 17] = TRAMPOLINE
    back = BASE + CODE_VADDR + 2 * FUNCTION + 8
    words = stack({SLOTS[ARCH.pc]: back, SLOTS[ARCH.sp]: STACK + 24, 16: back})
    frames, _ = unwind(tmp_path, X86_64, bytes(elf), {"rip": BASE + CODE_VADDR + 8}, words)
    assert [f.method for f in frames] == [Method.REGISTERS, method]


def test_code_without_rules_returns_nowhere_else_but_behind_a_call(tmp_path: Path) -> None:
    elf = filled([None, None, [op(0x07, 16)]], code=b"\x90" * 7 + b"\xc3")
    pc = BASE + CODE_VADDR + 2
    frames, end = unwind(tmp_path, X86_64, elf, {"rip": pc}, [pc + FUNCTION])
    assert [f.lookup for f in frames] == [pc] and end is TraceEnd.NO_UNWIND_ROW
