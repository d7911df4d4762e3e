"""Inline hooks in a running process: an allocator that only its own program can call is measured to the block, and the
code is byte for byte as it was afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.wire.blocks import BlockKind
from tests.support.attached_session import (
    attach,
    contents_of,
    layout_of,
    leak,
    loaded,
    start_agent,
    write_code,
)
from tests.support.attaching import until
from tests.support.gcc import gcc
from tests.support.inline_session import attach_inline, own_allocator_program, plan, started
from tests.support.workloads import ROOT

pytestmark = pytest.mark.compares_code


@pytest.fixture(scope="module")
def program() -> Path:
    return own_allocator_program("own_allocator")


@pytest.fixture
def process(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    with started(program, "3") as running:
        yield running


def address_of(pid: int, name: str) -> int:
    """Of a function of the program itself."""
    executable = os.readlink(f"/proc/{pid}/exe")
    (symbol,) = ElfFile(executable).static_functions({name})
    first = next(one for one in LocalProcess.open(pid).mappings() if one.path == executable)
    return first.start + symbol.vaddr


def test_what_slots_showed_an_earlier_session_is_none_of_this_one_s() -> None:
    with loaded(1) as process:
        assert attach(process.pid).hooked
        found = attach_inline(process.pid, lambda: leak(process))
        assert (found.error, found.sizes[5003], found.hooked) == ("", 23, [])


def test_leaks_of_a_hidden_allocator_are_exact_and_the_code_is_as_it_was(
    process: subprocess.Popen[bytes],
) -> None:
    leak(process)  # before: invisible
    before, layout = contents_of(process.pid), layout_of(process.pid)
    for _ in range(3):
        meanwhile = []

        def leak_and_look(seen: list[dict[str, str]] = meanwhile) -> None:
            leak(process)
            seen.append(contents_of(process.pid))

        found = attach_inline(process.pid, leak_and_look)
        assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23), found
        assert meanwhile and meanwhile[0] != before
        assert contents_of(process.pid) == before
        assert layout_of(process.pid) == layout
    leak(process)


def test_slots_see_nothing_of_it(process: subprocess.Popen[bytes]) -> None:
    """Also not when an inline session has been before: then the originals are libc's again."""
    for _ in range(2):
        assert attach(process.pid, lambda: leak(process)).sizes[5003] == 0
        assert attach_inline(process.pid, lambda: leak(process)).sizes[5003] == 23
    leak(process)


def test_the_libc_that_all_share(program: Path) -> None:
    with started(program, "0") as process:
        hooks = plan(process.pid, object="libc")
        assert hooks.allocator.path.endswith("libc.so.6")
        before = contents_of(process.pid)
        found = attach(process.pid, lambda: leak(process), "inline", hooks.lines)
        assert (found.error, found.sizes[5003]) == ("", 0)
        assert contents_of(process.pid) == before
        leak(process)


def test_a_prefix_names_the_allocators_functions() -> None:
    renamed = [f"-D{name}=my_{name}" for name in ("malloc", "free", "calloc", "realloc", "aligned_alloc")]
    with started(own_allocator_program("renamed_allocator", *renamed), "2") as process:
        with pytest.raises(TargetError, match="no function your_malloc found in"):
            plan(process.pid, symbols_prefix="your_")
        found = attach_inline(process.pid, lambda: leak(process), symbols_prefix="my_")
        assert (found.error, found.sizes[5003]) == ("", 23), found


@pytest.mark.parametrize("jump", [b"\xeb\x10", b"\xe9\x00\x10\x00\x00"], ids=["short", "near"])
def test_code_patched_by_another_tool_is_left_alone(jump: bytes, process: subprocess.Popen[bytes]) -> None:
    """Also where it is only what stays of the function's first instructions, over which ours would be led past."""
    address = address_of(process.pid, "aligned_alloc")
    hooks = plan(process.pid)
    original = write_code(process.pid, address, jump)
    before = contents_of(process.pid)
    found = attach(process.pid, lambda: None, "inline", hooks.lines)
    assert f"the code at {address:#x} of process {process.pid} differs from its file" in found.error
    assert contents_of(process.pid) == before
    write_code(process.pid, address, original)
    leak(process)
    assert attach_inline(process.pid, lambda: leak(process)).sizes[5003] == 23


def test_a_hook_put_over_ours_stays_and_is_reported(process: subprocess.Popen[bytes]) -> None:
    address = address_of(process.pid, "aligned_alloc")
    before = contents_of(process.pid)
    foreign: list[bytes] = []
    found = attach_inline(
        process.pid, lambda: foreign.append(write_code(process.pid, address, b"\xcc\xcc\xcc\xcc\xcc"))
    )
    assert foreign and 0xE9 in foreign[0]
    assert any("is not our jump any more, and was left as it is" in remark for remark in found.remarks)
    write_code(process.pid, address, foreign[0])
    leak(process)
    assert contents_of(process.pid) != before


def test_a_removed_hook_is_reported(process: subprocess.Popen[bytes]) -> None:
    address, before = address_of(process.pid, "aligned_alloc"), contents_of(process.pid)
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        code = os.pread(memory.fileno(), 16, address)
    found = attach_inline(process.pid, lambda: write_code(process.pid, address, code))
    assert any("another tool restored the original code" in remark for remark in found.remarks)
    leak(process)
    assert contents_of(process.pid) == before


@pytest.mark.parametrize("victims", ["agent", "keeper"])
def test_code_is_restored_after_a_kill(process: subprocess.Popen[bytes], victims: str) -> None:
    before = contents_of(process.pid)
    channel, session = start_agent(process.pid, "inline", plan(process.pid).lines)
    for block in session.blocks():
        if block.kind == BlockKind.STOPS:
            break
    assert contents_of(process.pid) != before
    children = Path(f"/proc/{channel.pid}/task/{channel.pid}/children").read_text().split()
    if victims == "agent":
        os.kill(channel.pid, signal.SIGKILL)
    else:
        os.kill(int(children[0]), signal.SIGKILL)
        os.kill(channel.pid, signal.SIGTERM)
    assert until(lambda: contents_of(process.pid) == before)
    leak(process)
    session.close()


def test_threads_in_the_midst_of_what_is_patched_go_on(tmp_path: Path) -> None:
    """The functions begin with slow instructions, in which the threads mostly are when they are stopped."""
    wrapped = tmp_path / "slow_entries.c"
    wrapped.write_text(
        "".join(
            f'__asm__(".globl {name}\\n.hidden {name}\\n.type {name}, @function\\n{name}:\\n'
            f'mfence\\nmfence\\nmfence\\njmp own_{name}\\n.size {name}, . - {name}\\n");\n'
            for name in ("malloc", "free")
        )
    )
    program = own_allocator_program("slow_entries", str(wrapped), "-DOWN_malloc")
    with started(program, "4") as process:
        before = contents_of(process.pid)
        for _ in range(10):
            found = attach_inline(process.pid, lambda: leak(process))
            assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23), found
            assert contents_of(process.pid) == before


def test_registers_that_the_function_leaves_alone_stay(tmp_path: Path) -> None:
    """Callers that know the function rely on more than the ABI says (GCC's -fipa-ra)."""
    source, program = ROOT / "tests" / "device" / "programs" / "kept_registers.c", tmp_path / "kept_registers"
    gcc("-O2", "-fvisibility=hidden", "-o", program, source)
    with started(program) as process:
        answers = []

        def call(orders: bytes = b"mb") -> None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(orders)
            process.stdin.flush()
            answers.extend(process.stdout.readline() for _ in orders)

        call()
        found = attach_inline(process.pid, call)
        assert (found.error, found.sizes) == ("", {48: 1}), found
        call()
    assert answers == [b"kept\n"] * 6


def test_the_workload_has_no_symbol_for_others(program: Path) -> None:
    assert ElfFile(program).dynamic_functions({"malloc", "free"}) == []
