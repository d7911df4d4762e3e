"""Functions that a hook changed in a running process take no uprobe: it would end the process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.machine.local.process import LocalProcess
from tests.support.attached_session import leak, workload, write_code
from tests.support.inline_session import attach_inline
from tests.support.snoop_runs import snoop
from tests.support.workloads import PROGRAM, need

# a session of every process, in the next worker, must not meet what is hooked here
pytestmark = [pytest.mark.bpf, pytest.mark.compares_code]

JUMP = bytes.fromhex("ff2500000000") + bytes(8)  # as hooks that go far
MOVABS = bytes.fromhex("48b8") + bytes(8) + bytes.fromhex("ffe0")  # begins as many functions do


NAME = "pvalloc"  # of libc, unused


@pytest.fixture
def libc(tmp_path: Path) -> Path:
    """A copy of its own: other tests probe the machine's in all processes."""
    loaded = next(
        one.path for one in LocalProcess.open(os.getpid()).mappings() if one.path.endswith("/libc.so.6")
    )
    return Path(shutil.copy(loaded, tmp_path))


@pytest.fixture
def process(libc: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(libc.parent)}
    process = subprocess.Popen(
        [workload(), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(pid: int, name: str = NAME) -> int:
    mappings = [one for one in LocalProcess.open(pid).mappings() if one.path.endswith("/libc.so.6")]
    (symbol,) = (one for one in ElfFile(mappings[0].path).dynamic_functions({name}) if one.is_default)
    return mappings[0].start + symbol.vaddr


def measured(*words: object) -> subprocess.CompletedProcess[str]:
    need("bpf")
    argv = [*map(str, PROGRAM), "--tracer", "bpf", "--duration", "1s", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("--pid", "{pid}"),
        pytest.param(("--all",), marks=pytest.mark.changes_all_code),
        ("-O", "{libc}", "--follow", "--", "true"),
    ],
    ids=" ".join,
)
def test_the_heap_is_not_traced(words: tuple[str, ...], process: subprocess.Popen[bytes], libc: Path) -> None:
    """With --follow or --all, probes go to every process: none may have a hook."""
    address = address_of(process.pid)
    write_code(process.pid, address, JUMP)
    done = measured(*(word.format(pid=process.pid, libc=libc) for word in words))
    assert done.returncode not in (0, 1), done.stdout
    said = f"the code at {address:#x} of process {process.pid} differs from"
    assert said in done.stderr and "use --tracer plt" in done.stderr
    leak(process)
    assert process.poll() is None


def test_a_hook_that_begins_with_the_functions_own_byte(process: subprocess.Popen[bytes]) -> None:
    address = address_of(process.pid, "reallocarray")
    before = write_code(process.pid, address, MOVABS)
    assert before[0] == MOVABS[0], "this libc's function begins otherwise: nothing was put to the test"
    done = measured("--pid", process.pid)
    assert f"the code at {address:#x} of process {process.pid} differs from" in done.stderr


def test_it_goes_on_beside_inline_hooks_of_ours(process: subprocess.Popen[bytes]) -> None:
    """They keep the instructions that probes are set on."""
    runs: list[subprocess.CompletedProcess[str]] = []
    found = attach_inline(process.pid, lambda: runs.append(measured("--pid", process.pid)), object="libc")
    assert found.error == "" and found.sizes.total()
    (done,) = runs
    assert done.returncode == 0, done.stderr
    leak(process)


def test_a_breakpoint_is_not_a_hook(process: subprocess.Popen[bytes]) -> None:
    write_code(process.pid, address_of(process.pid), b"\xcc")
    done = measured("--pid", process.pid)
    assert done.returncode == 0, done.stderr
    leak(process)


def test_snoop_leaves_it_out(process: subprocess.Popen[bytes]) -> None:
    write_code(process.pid, address_of(process.pid), JUMP)
    functions = [word for name in (NAME, "getpid") for word in ("-f", f"libc.so.6:{name}")]
    done = snoop(*functions, "--pid", process.pid, "--duration", "1s")
    assert f"{NAME}: not probed in process" in done.err and "(a hook)" in done.err
    assert "1 of 2 functions probed" in done.err
    assert process.poll() is None
