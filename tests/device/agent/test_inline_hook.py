"""Inline hooks in a running process: what they see and what slots see, and the company of other tools' hooks."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from tests.support.attached_session import (
    address_of,
    attach,
    contents_of,
    leak,
    loaded,
    order,
    started,
    write_code,
)
from tests.support.inline_session import attach_inline, own_allocator_program, plan
from tests.support.workloads import PROGRAMS, built

pytestmark = pytest.mark.compares_code


def program() -> Path:
    return own_allocator_program("own_allocator")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    assert ElfFile(program()).dynamic_functions({"malloc", "free"}) == [], "others can call it"
    with loaded(3, program()) as running:
        yield running


def test_what_slots_showed_an_earlier_session_is_none_of_this_one_s() -> None:
    with loaded(1) as process:
        assert attach(process.pid).hooked
        found = attach_inline(process.pid, lambda: leak(process))
        assert (found.error, found.sizes[5003], found.hooked) == ("", 23, [])


def test_slots_see_nothing_of_it(process: subprocess.Popen[bytes]) -> None:
    """Also not when an inline session has been before: then the originals are libc's again."""
    for _ in range(2):
        assert attach(process.pid, lambda: leak(process)).sizes[5003] == 0
        assert attach_inline(process.pid, lambda: leak(process)).sizes[5003] == 23
    leak(process)


def test_the_libc_that_all_share() -> None:
    with loaded(0, program()) as process:
        hooks = plan(process.pid, object="libc")
        assert hooks.allocator.path.endswith("libc.so.6")
        before = contents_of(process.pid)
        found = attach(process.pid, lambda: leak(process), "inline", hooks.lines)
        assert (found.error, found.sizes[5003]) == ("", 0)
        assert contents_of(process.pid) == before
        leak(process)


def test_a_prefix_names_the_allocators_functions() -> None:
    renamed = [f"-D{name}=my_{name}" for name in ("malloc", "free", "calloc", "realloc", "aligned_alloc")]
    with loaded(2, own_allocator_program("renamed_allocator", *renamed)) as process:
        with pytest.raises(TargetError, match="no function your_malloc found in"):
            plan(process.pid, symbols_prefix="your_")
        found = attach_inline(process.pid, lambda: leak(process), symbols_prefix="my_")
        assert (found.error, found.sizes[5003]) == ("", 23), found


@pytest.mark.parametrize("jump", [b"\xeb\x10", b"\xe9\x00\x10\x00\x00"], ids=["short", "near"])
def test_code_patched_by_another_tool_is_left_alone(jump: bytes, process: subprocess.Popen[bytes]) -> None:
    """Also where it is only what stays of the function's first instructions, over which ours would be led past."""
    address = address_of(process.pid, "/own_allocator", "aligned_alloc")
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
    address = address_of(process.pid, "/own_allocator", "aligned_alloc")
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
    address, before = address_of(process.pid, "/own_allocator", "aligned_alloc"), contents_of(process.pid)
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        code = os.pread(memory.fileno(), 16, address)
    found = attach_inline(process.pid, lambda: write_code(process.pid, address, code))
    assert any("another tool restored the original code" in remark for remark in found.remarks)
    leak(process)
    assert contents_of(process.pid) == before


def test_registers_that_the_function_leaves_alone_stay() -> None:
    """Callers that know the function rely on more than the ABI says (GCC's -fipa-ra)."""
    with started(built(PROGRAMS / "kept_registers", "-fvisibility=hidden")) as process:
        answers = []

        def call() -> None:
            answers.extend((order(process, b"m"), order(process, b"b")))

        call()
        found = attach_inline(process.pid, call)
        assert (found.error, found.sizes) == ("", {48: 1}), found
        call()
    assert answers == [b"kept\n"] * 6


@pytest.mark.skipif(os.geteuid() != 0, reason="memory that another process waits for needs root")
def test_memory_behind_a_stack_that_the_stopped_process_would_have_to_serve() -> None:
    with started(program(), "served", "0") as process:
        assert attach_inline(process.pid, lambda: leak(process)).sizes[5003] == 23
        assert process.communicate(b"x", 20)[0] == b"unharmed, 0 signals\n"
