"""Whole stacks of running programs against eu-stack, through signal handlers too; lock-step against scalar."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.unwind import AddressSpace, Method, TraceEnd, unwind_batch
from tests.support.running_program import blocked, eu_stack
from tests.support.stack_capture import FileModules, assert_same_traces, capture, sample_batch

PYTHON = "import time; sorted([2, 1], key=lambda x: time.sleep(60))"
PROGRAMS = {
    "python3": ["/usr/bin/python3", "-c", PYTHON],
    "bash": ["/bin/bash", "-c", "f() { read x; }; f"],
    "git": ["/usr/bin/git", "hash-object", "--stdin"],
    "perl": ["/usr/bin/perl", "-e", "sub f { <STDIN> } f()"],
    "sqlite3": ["/usr/bin/sqlite3"],
    "jq": ["/usr/bin/jq", "."],
}


THREADS = (
    "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(3)]"
)
PROGRAMS_WITH_THREADS = ["/usr/bin/python3", "-c", THREADS]


@pytest.mark.parametrize("name", PROGRAMS)
def test_running_program_equals_eu_stack(name: str) -> None:
    argv = PROGRAMS[name]
    if not Path(argv[0]).exists():
        pytest.skip(f"{argv[0]} is not installed")
    with blocked(argv) as pid:
        stack, space, modules = capture(pid)
        wanted = eu_stack(pid)
    samples = sample_batch([stack])
    traces = unwind_batch(samples, [space], modules)
    assert len(wanted) > 3
    assert [hex(x) for x in traces.address.tolist()] == [hex(x) for x in wanted]
    assert traces.end[0] == TraceEnd.ROOT
    assert_same_traces(samples, [space], modules)


def test_threads_equal_eu_stack() -> None:
    """Stacks that begin in clone3, several threads captured as one batch."""
    with blocked(PROGRAMS_WITH_THREADS) as pid:
        tids = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
        captured = [capture(tid) for tid in tids]
        wanted = [eu_stack(tid) for tid in tids]
    _, space, modules = captured[0]
    samples = sample_batch([stack for stack, _, _ in captured])
    traces = unwind_batch(samples, [space], modules)
    assert len(tids) == 4
    for i, frames in enumerate(wanted):
        assert traces.address[traces.offsets[i] : traces.offsets[i + 1]].tolist() == frames
    assert set(traces.end.tolist()) == {TraceEnd.ROOT}
    assert_same_traces(samples, [space], modules)


def test_truncated_slices_end_as_such_and_keep_a_prefix() -> None:
    with blocked(PROGRAMS["bash"]) as pid:
        stack, space, modules = capture(pid)
    whole = unwind_batch(sample_batch([stack]), [space], modules).address.tolist()
    cut = [
        type(stack)(stack.registers, stack.stack_address, stack.stack[:n])
        for n in range(0, len(stack.stack), 61)
    ]
    samples = sample_batch(cut)
    traces = unwind_batch(samples, [space], modules)
    ends = set()
    for i in range(len(cut)):
        found = traces.address[traces.offsets[i] : traces.offsets[i + 1]].tolist()
        assert found == whole[: len(found)]
        ends.add(TraceEnd(traces.end[i]))
        assert (traces.end[i] == TraceEnd.ROOT) == (len(found) == len(whole))
    assert ends == {TraceEnd.ROOT, TraceEnd.STACK_TRUNCATED}
    assert_same_traces(samples, [space], modules)


def test_spaces_are_kept_apart() -> None:
    """The same addresses in two address spaces, of which one has no mappings there."""
    with blocked(PROGRAMS["bash"]) as pid:
        stack, space, modules = capture(pid)
    other = type(stack)(stack.registers, stack.stack_address, stack.stack, space=1)
    traces = unwind_batch(sample_batch([stack, other, stack]), [space, AddressSpace([])], modules)
    assert traces.end.tolist() == [TraceEnd.ROOT, TraceEnd.NO_MAPPING, TraceEnd.ROOT]
    assert np.diff(traces.offsets)[1] == 1


def test_empty_batch() -> None:
    traces = unwind_batch(sample_batch([]), [], FileModules())
    assert len(traces) == 0 and traces.offsets.tolist() == [0]


PROGRAM = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
/* faulting() begins with the instruction that faults; right before it ends a function with another CFA,
   so that a look-up one byte early finds the wrong rules. */
long faulting(long *);
__asm__(".text\n.type before,@function\nbefore:\n.cfi_startproc\n.cfi_def_cfa_offset 272\nud2\n.cfi_endproc\n"
	".globl faulting\n.type faulting,@function\nfaulting:\n.cfi_startproc\nmov (%rdi),%rax\nret\n.cfi_endproc\n");
static void handler(int signal)
{
	(void)signal;
	for (long result;;) /* pause(2) without a libc that may have no CFI */
		__asm__ volatile("syscall" : "=a"(result) : "0"(34) : "rcx", "r11", "memory");
}
__attribute__((noinline)) static long outer(long *address) { volatile char room[200]; room[3] = 1; return faulting(address) + room[3]; }
int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = handler};
	if (argc > 1) {
		stack_t other = {.ss_size = 65536};
		other.ss_sp = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		sigaltstack(&other, 0);
		action.sa_flags = SA_ONSTACK;
	}
	(void)argv;
	sigaction(SIGSEGV, &action, 0);
	return (int)outer((long *)8);
}
"""


def build(folder: Path, compiler: str) -> str:
    (folder / "program.c").write_text(PROGRAM)
    program = folder / "program"
    subprocess.run([compiler, "-O2", "-fomit-frame-pointer", "-o", program, folder / "program.c"], check=True)
    return str(program)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (apt-get install gcc)")
    return build(tmp_path_factory.mktemp("signals"), compiler)


def vaddr_of_symbol(program: str, name: str) -> int:
    listing = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    match = re.search(rf"^([0-9a-f]+) . {name}$", listing, re.MULTILINE)
    assert match is not None
    return int(match[1], 16)


def test_handler_on_the_same_stack(program: str) -> None:
    with blocked([program]) as pid:
        stack, space, modules = capture(pid)
        wanted = eu_stack(pid)
    samples = sample_batch([stack])
    traces = unwind_batch(samples, [space], modules)
    assert [hex(x) for x in traces.address.tolist()] == [hex(x) for x in wanted]
    assert traces.end[0] == TraceEnd.ROOT
    interrupted = traces.method.tolist().index(Method.SIGNAL)
    assert not traces.is_return[interrupted] and traces.is_return[interrupted + 1]
    mapping = space.find(int(traces.address[interrupted]))
    assert mapping is not None
    module = modules.module(0, mapping)
    assert module is not None
    assert module.vaddr_of(mapping, int(traces.address[interrupted])) == vaddr_of_symbol(program, "faulting")
    assert_same_traces(samples, [space], modules)


def test_handler_on_its_own_stack(program: str) -> None:
    """The slice ends with the alternate stack: the interrupted frame is found, what is below it was not captured."""
    with blocked([program, "x"]) as pid:
        stack, space, modules = capture(pid)
        wanted = eu_stack(pid)
    samples = sample_batch([stack])
    traces = unwind_batch(samples, [space], modules)
    found = traces.address.tolist()
    assert found == wanted[: len(found)] and len(found) < len(wanted)
    assert traces.method[-1] == Method.SIGNAL and traces.end[0] == TraceEnd.STACK_TRUNCATED
    assert_same_traces(samples, [space], modules)


def test_trampoline_without_cfi(tmp_path: Path) -> None:
    """musl's sigreturn has no CFI: it is known by its code bytes."""
    compiler = shutil.which("musl-gcc")
    if compiler is None:
        pytest.skip("no musl (apt-get install musl-tools)")
    program = build(tmp_path, compiler)
    with blocked([program]) as pid:
        stack, space, modules = capture(pid)
    samples = sample_batch([stack])
    traces = unwind_batch(samples, [space], modules)
    names = [vaddr_name(program, space, modules, int(x)) for x in traces.address]
    assert names[0] == "handler" and names[2:5] == ["faulting", "outer", "main"]
    assert traces.method[2] == Method.SIGNAL
    assert_same_traces(samples, [space], modules)


def vaddr_name(program: str, space: AddressSpace, modules: FileModules, address: int) -> str:
    """The function of the program that holds an address, or ''."""
    mapping = space.find(address)
    module = mapping and modules.module(0, mapping)
    if mapping is None or module is None or mapping.path != program:
        return ""
    vaddr = module.vaddr_of(mapping, address)
    listing = subprocess.run(["nm", "-n", program], capture_output=True, text=True, check=True).stdout
    symbols = [line.split() for line in listing.splitlines() if line[0] != " "]
    return [name for start, _, name in symbols if int(start, 16) <= vaddr][-1].split(".")[0]
