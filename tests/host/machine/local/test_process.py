"""Processes of this machine, fit and unfit ones."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.process import LocalProcess
from tests.support.attaching import until
from tests.support.containers import PIVOT
from tests.support.gcc import gcc
from tests.support.running_program import another_thread

Start = Callable[..., "subprocess.Popen[bytes]"]
MOUNTED = f"import ctypes; ctypes.CDLL(None).unshare(0x20000)\n{PIVOT}"  # CLONE_NEWNS
WAIT_C = '#include <unistd.h>\nint main(void) { if (write(1, "x", 1) == 1) pause(); return 0; }\n'


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program that writes a byte when it is up, and ends it after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*argv: str | Path, **options: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
        started.append(process)
        assert process.stdout is not None and process.stdout.read(1), f"{argv} did not start"
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waiting")
    (folder / "waiting.c").write_text(WAIT_C)
    gcc("-o", folder / "waiting", folder / "waiting.c")
    return folder


def refusal(pid: int) -> str:
    with pytest.raises(TargetError) as caught:
        LocalProcess.open(pid)
    return str(caught.value)


def names(process: LocalProcess) -> list[str]:
    return [os.path.basename(one.path) for one in process.loaded_objects()]


def test_a_process(start: Start) -> None:
    child = start("sh", "-c", "echo 'it is up'; read x; exit 0", stdin=subprocess.PIPE)
    process = LocalProcess.open(child.pid)
    assert (process.pid, process.root, process.name) == (child.pid, "", "sh")
    assert process.command == """sh -c 'echo '"'"'it is up'"'"'; read x; exit 0'"""
    files = {mapping.path for mapping in process.mappings()}
    assert os.path.realpath(shutil.which("sh") or "") in files
    child.stdin.close()  # type: ignore[union-attr]


def test_objects_in_search_order(start: Start, waiting: Path) -> None:
    """The preloaded library stands before libc, and the linker's list is that of ld.so."""
    preload = Path("/usr/lib/x86_64-linux-gnu/libutil.so.1")
    if not preload.exists():
        pytest.skip(f"no {preload} here")
    child = start(waiting / "waiting", env={"LD_PRELOAD": str(preload)})
    assert (
        " ".join(names(LocalProcess.open(child.pid))) == "waiting libutil.so.1 libc.so.6 ld-linux-x86-64.so.2"
    )


def test_a_program_run_by_its_linker(start: Start, waiting: Path) -> None:
    """The kernel started the linker, and knows nothing of the program."""
    program = waiting / "waiting"
    process = LocalProcess.open(start("/lib64/ld-linux-x86-64.so.2", "--inhibit-cache", program).pid)
    assert process.command == str(program)
    assert names(process) == ["waiting", "libc.so.6", "ld-linux-x86-64.so.2"]
    assert all(one.dynamic for one in process.loaded_objects())


def test_a_static_process(start: Start, tmp_path: Path) -> None:
    (tmp_path / "waiting.c").write_text(WAIT_C)
    if subprocess.run(["gcc", "-static", "-o", "alone", "waiting.c"], cwd=tmp_path, check=False).returncode:
        pytest.skip("no static libc is installed (Debian: libc6-dev)")
    assert names(LocalProcess.open(start(tmp_path / "alone").pid)) == ["alone"]


def test_a_deleted_executable(start: Start, waiting: Path, tmp_path: Path) -> None:
    program = tmp_path / "gone"
    shutil.copy(waiting / "waiting", program)
    child = start(program)
    program.unlink()
    program.write_bytes(b"another file of the same name")
    first = LocalProcess.open(child.pid).loaded_objects()[0]
    assert first.path == str(program)
    if os.geteuid() != 0:
        pytest.skip("/proc/PID/map_files needs CAP_CHECKPOINT_RESTORE")
    assert Path(first.open_path).read_bytes() == (waiting / "waiting").read_bytes()


@pytest.fixture
def musl_root(tmp_path: Path) -> Path:
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc is not installed (Debian: musl-tools)")
    if os.geteuid() != 0:
        pytest.skip("another root needs root")
    (tmp_path / "lib").mkdir()
    (tmp_path / "waiting.c").write_text(WAIT_C)
    subprocess.run(["musl-gcc", "-o", "waiting", "waiting.c"], cwd=tmp_path, check=True)
    shutil.copy("/lib/ld-musl-x86_64.so.1", tmp_path / "lib")
    return tmp_path


@pytest.mark.parametrize("words", [("chroot",), (sys.executable, "-c", MOUNTED)])
def test_another_root(start: Start, musl_root: Path, words: tuple[str, ...]) -> None:
    """By chroot, and in a mount namespace as in a container."""
    process = LocalProcess.open(start(*words, musl_root, "/waiting").pid)
    assert process.root == f"/proc/{process.pid}/root"
    shown = str(musl_root) if words[0] == "chroot" else ""
    for one, path in zip(process.loaded_objects(), ("/waiting", "/lib/ld-musl-x86_64.so.1"), strict=True):
        assert one.path == f"{shown}{path}" and os.path.samefile(one.open_path, f"{musl_root}{path}")


def test_a_pid_namespace(start: Start, waiting: Path) -> None:
    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a pid namespace of its own is not allowed here")
    child = start("unshare", "--pid", "--fork", "--kill-child", waiting / "waiting")
    (pid,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    process = LocalProcess.open(int(pid))
    assert (process.pid, process.root, names(process)[0]) == (int(pid), "", "waiting")


def test_not_there() -> None:
    unused = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    assert refusal(unused) == f"there is no process {unused}"
    assert refusal(2**40) == f"there is no process {2**40}"


def test_a_zombie() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        assert refusal(pid) == f"process {pid} ({name}) has ended already (zombie)"
    finally:
        os.waitpid(pid, 0)


def test_first_thread_has_ended(start: Start) -> None:
    """pthread_exit(3) in main(): the process lives, though its state is that of a zombie."""
    run = "threading.Thread(target=time.sleep, args=(600,)).start(); print('x', flush=True)"
    end = "ctypes.CDLL(None).syscall(60, 0)"  # SYS_exit ends the thread only
    pid = start(sys.executable, "-c", f"import ctypes, threading, time; {run}; {end}").pid
    status = Path(f"/proc/{pid}/status")
    assert until(lambda: "State:\tZ" in status.read_text())
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    why = f"process {pid} ({name}) runs on, but its first thread has ended"
    assert refusal(pid) == f"{why}; measure it from its start"


def test_a_thread() -> None:
    name, pid = Path("/proc/self/comm").read_text().strip(), os.getpid()
    with another_thread() as thread:
        assert refusal(thread) == f"{thread} is a thread of process {pid} ({name}); use --pid {pid}"


def test_a_kernel_thread() -> None:
    if not Path("/proc/2/comm").exists() or Path("/proc/2/comm").read_text().strip() != "kthreadd":
        pytest.skip("no kernel threads to be seen here")
    assert refusal(2) == "process 2 (kthreadd) is a kernel thread; use --kernel"


def test_not_ours(start: Start, waiting: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    code = (
        "import os, sys\n"
        "from memleak_android.host.machine.local.process import LocalProcess\n"
        "from memleak_android.host.errors import TargetError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: LocalProcess.open(int(sys.argv[1]))\n"
        "except TargetError as error: print(error)\n"
    )
    child = start(waiting / "waiting")
    argv = [sys.executable, "-c", code, str(child.pid)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said == f"process {child.pid} (waiting) may not be traced: it belongs to uid 0; run as root\n"


def test_a_32_bit_process(start: Start, tmp_path: Path) -> None:
    """Without a 32-bit libc: a program of three system calls."""
    source = (
        "void _start(void) { int r; static char c = 'x';\n"
        '  __asm__ volatile("int $0x80" : "=a"(r) : "0"(4), "b"(1), "c"(&c), "d"(1) : "memory");\n'
        '  for (;;) __asm__ volatile("int $0x80" : "=a"(r) : "0"(29) : "memory"); }\n'
    )
    (tmp_path / "small.c").write_text(source)
    command = ["gcc", "-m32", "-static", "-nostdlib", "-fno-pic", "-no-pie", "-o", "small", "small.c"]
    if subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode:
        pytest.skip("gcc cannot build for -m32")
    try:
        child = start(tmp_path / "small")
    except OSError as error:
        pytest.skip(f"the kernel runs no 32-bit programs: {error}")
    assert refusal(child.pid) == (
        f"process {child.pid} (small) is 32-bit, which cannot be traced; use a 64-bit build of it"
    )


def test_processes_that_end_at_any_moment() -> None:
    """Each attempt ends in an object or in one TargetError, never in another exception. The first process is still
    there, and the last is gone."""
    outcomes = set()
    for i in range(150):
        child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
        if i > 0:
            child.stdin.close()
            time.sleep(i * 1e-5)
        if i == 149:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        try:
            LocalProcess.open(child.pid).loaded_objects()
            outcomes.add("attached")
        except TargetError as error:
            outcomes.add(str(error).replace(str(child.pid), "PID"))
        child.communicate()
    assert len(outcomes) > 1 and "attached" in outcomes, outcomes
