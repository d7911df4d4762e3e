"""Functions that a hook changed in a running process take no uprobe: it would end the process."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.probes.allocator import plan_probes, probe_lines
from memleak_android.host.wire.blocks import BlockKind, Lost
from memleak_android.host.wire.payloads import decode_gap, decode_status
from tests.support.attached_session import address_of, leak, started, workload, write_code
from tests.support.inline_session import attach_inline
from tests.support.program_server import run_program
from tests.support.snoop_runs import snoop
from tests.support.workloads import need

# a session of every process, in the next worker, must not meet what is hooked here
pytestmark = [pytest.mark.bpf, pytest.mark.compares_code]

JUMP = bytes.fromhex("ff2500000000") + bytes(8)  # as hooks that go far
MOVABS = bytes.fromhex("48b8") + bytes(8) + bytes.fromhex("ffe0")  # begins as many functions do


NAME = "pvalloc"  # of libc, unused


@pytest.fixture
def libc() -> Iterator[Path]:
    """A copy of its own, for every user: other tests probe the machine's in all processes."""
    loaded = next(
        one.path for one in LocalProcess.open(os.getpid()).mappings() if one.path.endswith("/libc.so.6")
    )
    with tempfile.TemporaryDirectory(prefix="memleak-patched-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(shutil.copy(loaded, folder))


@pytest.fixture
def process(libc: Path) -> Iterator[subprocess.Popen[bytes]]:
    with started(workload(), "load", "1", env=os.environ | {"LD_LIBRARY_PATH": str(libc.parent)}) as process:
        yield process


def measured(*words: object) -> subprocess.CompletedProcess[str]:
    need("bpf")
    return run_program(["--tracer", "bpf", "--duration", "1s", *map(str, words)])


def code_of(pid: int) -> bytes:
    """All of libc's code, as this process sees it."""
    (mapping,) = (
        one
        for one in LocalProcess.open(pid).mappings()
        if one.path.endswith("/libc.so.6") and one.is_executable
    )
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), mapping.end - mapping.start, mapping.start)


def test_the_heap_is_not_traced(process: subprocess.Popen[bytes]) -> None:
    address = address_of(process.pid, "/libc.so.6", NAME)
    write_code(process.pid, address, JUMP)
    done = measured("--pid", process.pid)
    assert done.returncode not in (0, 1), done.stdout
    said = f"the code at {address:#x} of process {process.pid} differs from"
    assert said in done.stderr and "use --tracer plt" in done.stderr
    leak(process)
    assert process.poll() is None


def test_a_hook_over_the_instruction_that_leaves_a_function(process: subprocess.Popen[bytes]) -> None:
    """--pairs probes the ret of dup2(), which a hook may overwrite while the entry is as in the file."""
    address = address_of(process.pid, "/libc.so.6", "dup2")
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        exit_at = address + os.pread(memory.fileno(), 40, address).index(b"\xc3")  # of its 33 bytes
    write_code(process.pid, exit_at, JUMP)
    done = measured("--pid", process.pid, "--pairs", "fd")
    assert done.returncode not in (0, 1), done.stdout
    assert f"the code at {exit_at:#x} of process {process.pid} differs from" in done.stderr
    assert process.poll() is None


@pytest.fixture
def hooked(libc: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another user's process, whose code a hook has changed."""
    need("bpf")
    with started(
        workload(), "1", env=os.environ | {"LD_LIBRARY_PATH": str(libc.parent)}, user=65534
    ) as hooked:
        write_code(hooked.pid, address_of(hooked.pid, "/libc.so.6", NAME), JUMP)
        yield hooked


@pytest.mark.parametrize(
    "scope", [("whole_machine 1",), ("arg sleep", "arg 100", "follow 1")], ids=["--all", "--follow"]
)
def test_a_session_of_every_process_leaves_it_out(
    scope: tuple[str, ...], process: subprocess.Popen[bytes], hooked: subprocess.Popen[bytes], libc: Path
) -> None:
    """Another user's hook must not end the session, nor a probe of the session that user's process."""
    untouched, before = code_of(process.pid), code_of(hooked.pid)
    options = SessionOptions(every_process=True)
    lines = [*options.lines(), *scope, *probe_lines(plan_probes(str(libc), options.allocator)[0])]
    session = AgentSession("bpf", LocalChannel([str(find_binary("memleakd", local_arch())), "bpf"]), lines)
    said, n_lost = list[str](), 0
    for block in session.blocks():
        if block.kind == BlockKind.GAP:
            said.append(decode_gap(block.payload).text)
        elif block.kind == BlockKind.STATUS and not n_lost:
            n_lost = int(decode_status(block.payload)["lost"][Lost.PROGRAMS]) + 1
            assert code_of(process.pid) != untouched, "a probe in the process without a hook"
            assert code_of(hooked.pid) == before, "no probe in the process with one"
            leak(hooked)
            session.stop()
        assert block.kind != BlockKind.ERROR, block.payload
    session.close()
    assert f"process {hooked.pid} (attach_workload) is left out" in "".join(said)
    assert n_lost == 1 + (len(scope) == 1)
    assert code_of(hooked.pid) == before and code_of(process.pid) == untouched
    leak(hooked)
    leak(process)


def test_snoop_with_children_leaves_a_process_out(
    hooked: subprocess.Popen[bytes], libc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code_of(hooked.pid)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libc.parent))
    done = snoop("-f", f"libc.so.6:{NAME}", "--follow", command=["true"])
    assert f"process {hooked.pid} (attach_workload) is left out" in done.err
    assert "1 of 1 function" in done.err
    assert code_of(hooked.pid) == before
    leak(hooked)


def test_a_hook_that_begins_with_the_functions_own_byte(process: subprocess.Popen[bytes]) -> None:
    address = address_of(process.pid, "/libc.so.6", "reallocarray")
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
    write_code(process.pid, address_of(process.pid, "/libc.so.6", NAME), b"\xcc")
    done = measured("--pid", process.pid)
    assert done.returncode == 0, done.stderr
    leak(process)


def test_snoop_leaves_it_out(process: subprocess.Popen[bytes]) -> None:
    write_code(process.pid, address_of(process.pid, "/libc.so.6", NAME), JUMP)
    functions = [word for name in (NAME, "getpid") for word in ("-f", f"libc.so.6:{name}")]
    done = snoop(*functions, "--pid", process.pid, "--duration", "1s")
    assert f"{NAME}: not probed in process" in done.err and "(a hook)" in done.err
    assert "1 of 2 functions probed" in done.err
    assert process.poll() is None
