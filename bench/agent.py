"""Sessions of our own agent with the real consumer: blocks read, checked, decoded and written to a recording."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from bench.clocks import children_cpu_s, task_cpu_ns
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.recording.file import RecordingWriter
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import Probe, SessionOptions
from memleak_android.host.tracers.local.bpf import plan_session
from memleak_android.host.tracers.probes.allocator import probe_lines
from memleak_android.host.wire.blocks import BlockKind, Lost


@dataclass(frozen=True, slots=True)
class Installation:
    """Copies of the device binaries, so that a rebuild cannot change them between two rounds."""

    agent: Path
    shim: Path
    recording: Path  # overwritten by each session


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a command.

    cpu_s: target and tracer, until the recording is closed. setup_cpu_s: what of it the agent had used when its
    first STATUS came, for BPF the loading of the programs. host_cpu_s: our reader, not in cpu_s.
    """

    cpu_s: float
    wall_s: float
    setup_cpu_s: float = 0.0
    host_cpu_s: float = 0.0
    allocations: int = 0
    evidence: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)  # by cause


def bpf_lines(
    options: SessionOptions, extra: Sequence[str] = (), at_entry: bool = False, only: Sequence[str] = ()
) -> tuple[list[str], list[Probe]]:
    """Configuration of a BPF session. at_entry: all probes on the first instruction, where other tools put them.

    only: the functions to probe, when not all: each probe taken away costs the kernel a grace period.
    """
    probes = [one for one in plan_session(options).probes if not only or one.function in only]
    if at_entry:
        probes = [
            replace(
                one,
                entry_offset=one.function_offset,
                return_offset=None if one.return_offset is None else one.function_offset,
            )
            for one in probes
        ]
    return [*options.lines(), *extra, *probe_lines(probes)], probes


def preload_lines(options: SessionOptions, shim: Path) -> list[str]:
    return [*options.lines(), f"shim {quote(str(shim), safe='/')}"]


def _consume(session: AgentSession, recording: Path, capture: Capture, on_status: Callable[[], None]) -> None:
    with closing(RecordingWriter(recording, force=True)) as writer:
        for block in session.blocks():
            capture.add(block, writer.write(block))
            if block.kind == BlockKind.STATUS:
                on_status()


def _losses(status: Any) -> dict[str, int]:
    if status is None:
        return {}
    return {Lost(i).name.lower(): int(count) for i, count in enumerate(status["lost"]) if count}


def run_command(collector: str, lines: Sequence[str], here: Installation) -> Outcome:
    """A whole session around a command."""
    capture, setup_ns = Capture(), list[int]()

    def on_status() -> None:
        if not setup_ns and capture.status is not None:
            setup_ns.append(int(capture.status["tracer_cpu_ns"]))

    cpu_before, begin, host_before = children_cpu_s(), time.monotonic(), time.thread_time()
    session = AgentSession(collector, LocalChannel([str(here.agent), collector]), lines)
    try:
        _consume(session, here.recording, capture, on_status)
    finally:
        session.close()
    wall, host = time.monotonic() - begin, time.thread_time() - host_before
    if capture.errors:
        raise RuntimeError(capture.errors[0][1])
    status = capture.status
    assert status is not None
    return Outcome(
        children_cpu_s() - cpu_before,
        wall,
        setup_ns[0] / 1e9,
        host,
        int(status["alloc_objects"]),
        int(status["evidence_records"]),
        _losses(status),
    )


class Attached:
    """A BPF session on a running process: armed when entered, ended with its last snapshot when left."""

    def __init__(self, lines: Sequence[str], here: Installation) -> None:
        channel = LocalChannel([str(here.agent), "bpf"])
        self._pid = channel.pid
        self._session = AgentSession("bpf", channel, lines)
        self._capture = Capture()
        self._armed = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(here.recording,))

    def _read(self, recording: Path) -> None:
        try:
            _consume(self._session, recording, self._capture, self._armed.set)
        finally:
            self._armed.set()

    def __enter__(self) -> Self:
        self._reader.start()
        if not self._armed.wait(30) or self._capture.errors:
            raise RuntimeError(str(self._capture.errors) or "the agent did not arm its probes")
        return self

    def __exit__(self, *_: object) -> None:
        self._session.stop()
        self._reader.join()
        self._session.close()

    def cpu_ns(self) -> int:
        return task_cpu_ns(self._pid)

    def lost(self) -> int:
        return sum(_losses(self._capture.status).values())
