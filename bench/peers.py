"""The tools compared with. They are found or installed beside us, never part of us."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench import debian
from bench.agent import Outcome
from bench.clocks import children_cpu_s, task_cpu_ns

# Debian 12's libbpf-tools has no memleak; this suite's has. It runs under that suite's own loader and libc.
SUITE = "trixie"
_PROGRAM = "usr/sbin/memleak-libbpf"
_PATIENCE_S = 120.0
_ATTACHED = re.compile(rb"Tracing outstanding")


def find_memleak(given: str | None, folder: Path) -> tuple[list[str] | None, str]:
    """The command that runs libbpf-tools' memleak, and where it comes from or why there is none.

    given: a path named by the user. folder: where the newer suite's package is unpacked, root only.
    """
    if given:
        return ([given], given) if os.access(given, os.X_OK) else (None, f"{given} cannot be run")
    for name in ("memleak-libbpf", "bpf-memleak"):
        if path := shutil.which(name):
            return [path], path
    program = folder / "root" / _PROGRAM
    if not program.exists() and (reason := debian.unpack(SUITE, ["libbpf-tools"], folder)):
        return None, f"not here (name it by --peer or MEMLEAK_PEER): {reason}"
    return [
        *debian.loader(folder / "root"),
        str(program),
    ], f"libbpf-tools of Debian {SUITE}, unpacked into {folder}"


class AttachedMemleak:
    """memleak on a running process; it only attaches, its first summary would come after 1000 s."""

    def __init__(self, command: Sequence[str], pid: int) -> None:
        # On a terminal its remarks come when they are made, in a pipe when its buffer is full.
        self._terminal, other = pty.openpty()
        argv = [*command, "-p", str(pid), "-T", "10", "1000", "1"]
        self._process = subprocess.Popen(argv, stdin=other, stdout=other, stderr=other)
        os.close(other)

    def __enter__(self) -> Self:
        said = b""
        deadline = time.monotonic() + 30
        while not _ATTACHED.search(said):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"memleak did not attach: {said.decode(errors='replace').strip()}")
            if select.select([self._terminal], [], [], 0.1)[0]:
                said += os.read(self._terminal, 1 << 16)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def cpu_ns(self) -> int:
        return task_cpu_ns(self._process.pid)


def run_heaptrack(argv: Sequence[str], environment: Mapping[str, str], part: Path) -> Outcome:
    """A command under heaptrack, until its interpreter and compressor have ended."""
    part.mkdir(parents=True, exist_ok=True)
    output = part / "heaptrack.out"
    before, begin = children_cpu_s(), time.monotonic()
    subprocess.run(
        ["heaptrack", "-o", str(output), *argv],
        check=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    outcome = Outcome(children_cpu_s() - before, time.monotonic() - begin)
    for file in part.glob("heaptrack.out*"):
        file.unlink()
    return outcome


@dataclass(frozen=True, slots=True)
class Way:
    """A tool that traces until SIGINT. ready: its output once its probes are set. calls: in a burst of `snoop`."""

    name: str
    argv: tuple[str, ...]
    ready: bytes
    calls: int = 0


@contextmanager
def running(way: Way, folder: Path, is_armed: Callable[[], bool] = lambda: True) -> Iterator[None]:
    said = folder / "tool.txt"
    with open(said, "wb") as output:
        tool = subprocess.Popen(
            way.argv, stdout=output, stderr=output, env={**os.environ, "BPFTRACE_STRLEN": "64"}
        )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while way.ready not in said.read_bytes() or not is_armed():
            if tool.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{way.name} did not start: {said.read_text()[-300:]}")
            time.sleep(0.05)
        time.sleep(0.5)  # bpftrace says it before it does it
        yield
    finally:
        tool.send_signal(signal.SIGINT)
        tool.wait()
