"""Inline hooks on the machine, over adb: an arm64 program whose allocator only it can call."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memleak_android.host.elf.dynamic import ElfFile
from tests.emulator.phone.compiler import compiled, zig
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import interrupt, started
from tests.support.attaching import until
from tests.support.debian_packages import Unavailable
from tests.support.program_server import start_program
from tests.support.workloads import ROOT

pytestmark = pytest.mark.emulator

FOLDER = "/data/local/tmp/inline"
_SECONDS = 60.0


@pytest.fixture
def program() -> Path:
    folder = ROOT / "tests" / "device" / "programs"
    sources = [folder / name for name in ("attach_workload.c", "own_allocator.c")]
    flags = ("-O2", "-g", "-fvisibility=hidden", "-fno-sanitize=all", "-pthread")
    try:
        return compiled("own_allocator", zig("aarch64-linux-gnu.2.36"), flags, sources)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def pid(machine: Machine, program: Path) -> Iterator[int]:
    """It leaks 23 blocks of 5003 bytes as soon as there is a file `go`."""
    script = (
        f"(while [ ! -e {FOLDER}/go ]; do sleep 0.2; done; printf l; sleep 600)"
        f" | {FOLDER}/own_allocator load 1 > {FOLDER}/out 2>&1"
    )
    with machine.holding(FOLDER, program):
        machine.shell(f"(setsid sh -c '{script}' < /dev/null > /dev/null 2>&1 &)")
        yield int(machine.wait_for_process(f"{FOLDER}/own_allocator"))
        machine.shell("pkill own_allocator")


def until_said(machine: Machine, word: str) -> None:
    assert until(lambda: word in machine.shell(f"cat {FOLDER}/out")[1]), f"not {word}"


@contextmanager
def snooping(machine: Machine, pid: int, *functions: str) -> Iterator[list[str]]:
    """Counts the program's functions meanwhile; snoop's output once its probes are set, and at the end."""
    names = [word for one in functions for word in ("-f", f"own_allocator:{one}")]
    words = ["snoop", "-s", machine.serial, "--pid", pid, "--statistics", *names]
    environment = {**os.environ, **machine.environment}
    with start_program(words, environment, stderr=subprocess.PIPE, text=True) as process:
        said = []
        while not said or not ("functions probed" in said[-1] or "error" in said[-1]):
            said.append(process.stderr.readline())
            assert said[-1], said
        yield said
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=_SECONDS)[1].splitlines()


def test_no_uprobe_comes_into_a_function_that_is_hooked(machine: Machine, pid: int, program: Path) -> None:
    until_said(machine, "ready")
    # linked for a fixed address
    (symbol,) = ElfFile(str(program)).static_functions({"aligned_alloc"})
    hook = "".join(f"\\x{byte:02x}" for byte in (0x50, 0, 0, 0x58, 0, 2, 0x1F, 0xD6, *bytes(8)))
    write = f"dd of=/proc/{pid}/mem bs=1 seek={symbol.vaddr} conv=notrunc 2>/dev/null"
    done = machine.root_shell(f"printf '{hook}' | {write}")
    assert done[0] == 0, done
    with snooping(machine, pid, "aligned_alloc", "malloc") as said:
        pass
    assert any("aligned_alloc: not probed in process" in line and "hook" in line for line in said), said
    assert any("1 of 2 functions probed" in line for line in said), said
    assert machine.shell(f"kill -0 {pid} && echo lives")[1] == "lives\n"


def test_a_hidden_allocator_of_a_native_program(machine: Machine, pid: int, tmp_path: Path) -> None:
    until_said(machine, "ready")
    before = machine.code_of(pid, "/own_allocator")
    report = tmp_path / "report.json"
    words = ("--pid", str(pid), "--tracer", "inline", "--object", "own_allocator", "--interval", "1s")
    with started(machine, *words, "--json", report) as process:
        assert process.stdout.readline()  # the first print: the hooks are in
        assert machine.code_of(pid, "/own_allocator") != before
        with snooping(machine, pid, "malloc") as said:  # a uprobe comes to a hooked function, and goes
            time.sleep(1)
        assert "1 of 1 functions probed" in "".join(said), said
        machine.shell(f"touch {FOLDER}/go")
        until_said(machine, "leaked")
        interrupt(process)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    sites = json.loads(report.read_text())["sites"]
    leaked = [site for site in sites if "leak_some" in [frame["function"] for frame in site["frames"]]]
    # the compiler makes several calls of one
    assert sum(site["inuse_objects"] for site in leaked) == 23
    assert sum(site["inuse_space"] for site in leaked) == 23 * 5003
    assert machine.code_of(pid, "/own_allocator") == before
