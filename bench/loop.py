"""The process whose malloc+free pairs are timed. It stays one process through a session, traced and not."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Burst:
    """Nanoseconds per malloc+free pair."""

    cpu_ns: float  # CLOCK_THREAD_CPUTIME_ID
    wall_ns: float


class LoopProcess:
    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.pid = self._process.pid
        self.run(1)  # the answer says that libc is loaded

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(self, pairs: int) -> Burst:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(b"%d\n" % pairs)
        cpu, wall = self._process.stdout.readline().split()
        return Burst(int(cpu) / pairs, int(wall) / pairs)

    def best(self, pairs: int, bursts: int) -> Burst:
        """The least disturbed of several bursts."""
        return min((self.run(pairs) for _ in range(bursts)), key=lambda burst: burst.cpu_ns)
