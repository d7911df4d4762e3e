"""How long `--reachability` stops a process, beside copies of the same memory made while it stands, and beside gdb's core file.

Every way stops the process anew, one after the other, in each round; the order turns round from one to the next.
"""

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.agent import Installation
from bench.programs import compile_c
from bench.spread import ratios, render, spread
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.local.machine import FilesInPlace, LocalMachine
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.scan.blocks import scan_by_agent
from memleak_android.host.machine.scan.local import read_words, readable_ranges, scan_memory, stopped_threads
from memleak_android.host.machine.scan.words import MemoryScan

HERE, AGENT, KEPT, BUFFER, CORE = "this machine", "agent", "kept copy", "one buffer", "gdb's core file"
MEGABYTES = (100, 1000)
_BUFFER_BYTES = 512 << 10
_NO_BLOCKS = np.empty(0, np.uint64)
_POLL_S = 0.0005  # how exactly a core file's stop is known


@dataclass(slots=True)
class Stops:
    """Of a heap of `megabytes`. ms: by way, one value a round. searched_bytes: by our readers, of the last round."""

    megabytes: int
    ms: dict[str, list[float]] = field(default_factory=dict)
    searched_bytes: dict[str, int] = field(default_factory=dict)


def measure(rounds: int, here: Installation, folder: Path, sizes: Sequence[int] = MEGABYTES) -> list[Stops]:
    """Sizes in MB. One round more, the first, does not count."""
    program = compile_c("pointers", folder)
    return [_one_heap(rounds, megabytes, program, here, folder) for megabytes in sizes]


def _one_heap(rounds: int, megabytes: int, program: Path, here: Installation, folder: Path) -> Stops:
    found = Stops(megabytes)
    with _running(program, megabytes) as pid:
        ways = _ways(pid, here, folder, found)
        for number in range(rounds + 1):
            for name in list(ways)[:: -1 if number % 2 else 1]:
                ms = ways[name]()
                if number:
                    found.ms.setdefault(name, []).append(ms)
    return found


@contextmanager
def _running(program: Path, megabytes: int) -> Iterator[int]:
    with subprocess.Popen(
        [program, str(megabytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{program.name} could not have {megabytes} MB")
        yield process.pid
        process.stdin.close()


def _ways(pid: int, here: Installation, folder: Path, found: Stops) -> dict[str, Callable[[], float]]:
    """By name: stops the process once, and returns for how long, in ms."""
    machine = LocalMachine()
    agent = ReadingAgent(machine, lambda user: FilesInPlace({"memleakd": here.agent}))

    def searched(name: str, scan: MemoryScan) -> float:
        found.searched_bytes[name] = scan.scanned_bytes
        return scan.stopped_ns / 1e6

    ways = {
        HERE: lambda: searched(HERE, scan_memory(pid, _NO_BLOCKS)),
        AGENT: lambda: searched(AGENT, scan_by_agent(agent, pid, _NO_BLOCKS)),
        KEPT: lambda: _copied(pid, is_kept=True),
        BUFFER: lambda: _copied(pid, is_kept=False),
    }
    if gdb := shutil.which("gdb"):
        ways[CORE] = lambda: _core_file(gdb, pid, folder / "core")
    return ways


def _copied(pid: int, *, is_kept: bool) -> float:
    """ms of process_vm_readv(2) alone, in pieces: into fresh memory of its own, or into one buffer again and again."""
    with ThreadPoolExecutor(1) as worker:  # which ends: the kernel lets go what it could not
        return worker.submit(_stop_and_copy, pid, is_kept).result()


def _stop_and_copy(pid: int, is_kept: bool) -> float:
    with stopped_threads(pid) as threads:
        mappings = parse_maps(Path(f"/proc/{pid}/maps").read_text())
        ranges = list(readable_ranges(pid, mappings, threads))
        total = sum(end - start for start, end in ranges)
        words = np.frombuffer(mmap.mmap(-1, total if is_kept else _BUFFER_BYTES), np.uint64)
        if not is_kept:
            words[:] = 0
        begin_ns, at = time.monotonic_ns(), 0
        for start, end in ranges:
            for piece in range(start, end, _BUFFER_BYTES):
                got = read_words(pid, piece, min(end - piece, _BUFFER_BYTES), words[at:])
                at += len(got) if is_kept else 0
        return (time.monotonic_ns() - begin_ns) / 1e6


def _core_file(gdb: str, pid: int, path: Path) -> float:
    """ms in which polling finds the process in a tracing stop."""
    words = [gdb, "-nx", "-batch", "-p", str(pid), "-ex", f"generate-core-file {path}"]
    silent = subprocess.DEVNULL
    begin_ns = end_ns = 0
    with subprocess.Popen(words, stdin=silent, stdout=silent, stderr=silent) as debugger:
        while debugger.poll() is None:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "t":
                end_ns = time.monotonic_ns()
                begin_ns = begin_ns or end_ns
            time.sleep(_POLL_S)
    if not path.exists():
        raise RuntimeError("gdb wrote no core file")
    os.unlink(path)
    return (end_ns - begin_ns) / 1e6


def _ratios(stops: Stops) -> dict[str, list[float]]:
    """By round."""
    pairs = [(ours, other) for ours in (HERE, AGENT) for other in (KEPT, BUFFER)]
    found = {f"{ours} / {other}": ratios(stops.ms[ours], stops.ms[other]) for ours, other in pairs}
    if CORE in stops.ms:
        found |= {f"{CORE} / {ours}": ratios(stops.ms[CORE], stops.ms[ours]) for ours in (HERE, AGENT)}
    return found


def as_json(heaps: Sequence[Stops]) -> dict[str, Any]:
    return {
        "unit": "ms, one value a round",
        "heaps": [asdict(one) | {"ratios": _ratios(one)} for one in heaps],
    }


def as_text(heaps: Sequence[Stops]) -> str:
    rows = [(name, *(spread(one.ms[name], 0) for one in heaps)) for name in heaps[0].ms]
    heading = ("ms, median (min … max)", *(f"{one.megabytes:,} MB" for one in heaps))
    compared: Sequence[Mapping[str, list[float]]] = [_ratios(one) for one in heaps]
    below = [(name, *(spread(one[name], 2) for one in compared)) for name in compared[0]]
    missing = [] if CORE in heaps[0].ms else ["  peer not run: no gdb here"]
    return "\n".join([render(heading, rows), *missing, "", render(("ratio by round", *heading[1:]), below)])
