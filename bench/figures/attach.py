"""How long a running program stands still when it is attached to and left: by slots, by inline hooks, by gdb."""

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from bench.agent import Installation, preload_lines
from bench.spread import ratios, render, spread
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.wire.blocks import STOP, BlockKind, Rows, StopMoment, Stopped
from memleak_android.host.wire.payloads import decode_error, decode_stops
from tests.support.inline_session import plan_local

# struct gap and struct shared of workloads/heartbeats.c
_GAP = np.dtype([("begin_ns", "<u8"), ("end_ns", "<u8"), ("thread", "<u8")])
_GAPS, _HEAD = 1 << 20, 16


@dataclass(frozen=True, slots=True)
class Silence:
    """Of a span of time, in ms. longest_all, sum_all: no thread made progress; longest_one: a thread made none."""

    longest_all: float
    sum_all: float
    longest_one: float


class Heartbeats:
    """folder: of the shared file."""

    def __init__(self, program: Path, folder: Path, threads: int) -> None:
        path = folder / "heartbeats.shared"
        with path.open("wb+") as file:
            os.truncate(file.fileno(), _HEAD + _GAPS * _GAP.itemsize)
            self._shared = mmap.mmap(file.fileno(), 0)
        self._process = subprocess.Popen(
            [program, path, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        path_is_open = self._process.stdout is not None and self._process.stdout.readline() == b"ready\n"
        path.unlink()
        if not path_is_open:
            raise RuntimeError(f"{program} did not start")
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._shared.close()

    def silence(self, begin_ns: int, end_ns: int) -> Silence:
        """Between two moments of CLOCK_MONOTONIC, of gaps of 20 us and more that lie at least in part between them."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the process that was attached to ended: {self._process.returncode}")
        n_gaps = int.from_bytes(self._shared[:8], "little")
        if n_gaps > _GAPS:
            raise RuntimeError(f"more than {_GAPS} gaps: ask for fewer rounds")
        gaps = np.frombuffer(bytes(self._shared[_HEAD : _HEAD + n_gaps * _GAP.itemsize]), _GAP)
        gaps = gaps[(gaps["end_ns"] > begin_ns) & (gaps["begin_ns"] < end_ns)]
        lengths = (gaps["end_ns"] - gaps["begin_ns"]) / 1e6
        is_all = gaps["thread"] == 0
        return Silence(
            float(lengths[is_all].max(initial=0)),
            float(lengths[is_all].sum()),
            float(lengths[~is_all].max(initial=0)),
        )


THREADS = 4
PLT, INLINE, GDB, NOTHING = "--tracer plt", "--tracer inline", "gdb", "nothing"
_MEASURED_S = 0.1  # between attach and detach


@dataclass(slots=True)
class Cost:
    """By round, in ms: what the program saw, and what the tool itself states (of all threads, and of the one that calls)."""

    seen: list[Silence] = field(default_factory=list)
    stated_all: list[float] = field(default_factory=list)
    stated_caller: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def measure(rounds: int, program: Path, here: Installation, folder: Path) -> dict[str, Cost]:
    """Each way once a round, on one process that runs through all rounds; one round more, the first, does not count."""
    ways: dict[str, Callable[[int], Rows]] = {
        PLT: lambda pid: _session(pid, "plt", here),
        INLINE: lambda pid: _session(pid, "inline", here),
        NOTHING: lambda pid: time.sleep(0.5) or np.empty(0, STOP),
    }
    if gdb := shutil.which("gdb"):
        ways[GDB] = lambda pid: _debugger(gdb, pid)
    costs = {name: Cost() for name in ways}
    with Heartbeats(program, folder, THREADS) as target:
        for number in range(rounds + 1):
            for name, attach in ways.items():
                begin_ns = time.monotonic_ns()
                stops = attach(target.pid)
                end_ns = time.monotonic_ns()
                time.sleep(0.05)  # the last gap is noted at its end
                if number:
                    _note(costs[name], target.silence(begin_ns, end_ns), stops, (end_ns - begin_ns) / 1e6)
    return costs


def _note(cost: Cost, seen: Silence, stops: Rows, wall_ms: float) -> None:
    cost.seen.append(seen)
    cost.wall.append(wall_ms)
    for stopped, stated in ((Stopped.ALL, cost.stated_all), (Stopped.CALLER, cost.stated_caller)):
        if found := stops["duration_ns"][stops["stopped"] == stopped].tolist():
            stated.append(max(found) / 1e6)


def _session(pid: int, hook: str, here: Installation) -> Rows:
    """Runs a whole session and returns its stops, rows of STOP."""
    options = SessionOptions(pid=pid)
    lines, stops = [*preload_lines(options, here.shim), f"hook {hook}"], []
    if hook == "inline":
        planned = plan_local(LocalProcess.open(pid), options.allocator, here.agent, here.shim)
        lines += planned.lines
        stops.append(planned.stops)
    session = AgentSession(hook, LocalChannel([str(here.agent), "preload"]), lines)
    try:
        for block in session.blocks():
            if block.kind == BlockKind.ERROR:
                raise RuntimeError(decode_error(block.payload)[1])
            if block.kind != BlockKind.STOPS:
                continue
            stops.append(decode_stops(block.payload))
            if not any(rows["moment"][0] == StopMoment.DETACH for rows in stops):
                time.sleep(_MEASURED_S)
                session.stop()
    finally:
        session.close()
    return np.concatenate(stops)


def _debugger(gdb: str, pid: int) -> Rows:
    """Attached, and left again, as with nothing to do."""
    silent = subprocess.DEVNULL
    command = [gdb, "-nx", "-batch", "-p", str(pid)]
    subprocess.run(command, stdin=silent, stdout=silent, stderr=silent, check=True)
    return np.empty(0, STOP)


_COMPARED = (
    "longest, all threads",
    "longest, one thread",
)  # what is "in all" grows with the time that a tool takes for itself
_SEEN: Mapping[str, Callable[[Silence], float]] = {
    "longest, all threads": lambda one: one.longest_all,
    "in all, all threads": lambda one: one.sum_all,
    "longest, one thread": lambda one: one.longest_one,
}


def _ratios(costs: Mapping[str, Cost]) -> dict[str, list[float]]:
    """gdb's figure by ours, by round."""
    if GDB not in costs:
        return {}
    found = {}
    for ours in (PLT, INLINE):
        for what in _COMPARED:
            theirs, own = ([_SEEN[what](one) for one in costs[name].seen] for name in (GDB, ours))
            found[f"gdb / {ours}, {what}"] = ratios(theirs, own)
    return found


def as_json(costs: Mapping[str, Cost]) -> dict[str, Any]:
    return {
        "unit": "ms, one value a round",
        "threads": THREADS,
        "ways": {
            name: {what: [value(one) for one in cost.seen] for what, value in _SEEN.items()}
            | {"stated, all": cost.stated_all, "stated, caller": cost.stated_caller, "wall": cost.wall}
            for name, cost in costs.items()
        },
        "ratios": _ratios(costs),
    }


def as_text(costs: Mapping[str, Cost]) -> str:
    heading = ("ms, median (min … max)", *_SEEN, "stated, all threads", "stated, the caller")
    rows = [
        (
            name,
            *(spread([value(one) for one in cost.seen], 2) for value in _SEEN.values()),
            *(spread(stated, 2) if stated else "" for stated in (cost.stated_all, cost.stated_caller)),
        )
        for name, cost in costs.items()
    ]
    lines = [render(heading, rows), *([] if GDB in costs else ["  peer not run: no gdb here"]), ""]
    lines += [f"  {name:48}{spread(values, 1)}" for name, values in _ratios(costs).items()]
    return "\n".join(lines)
