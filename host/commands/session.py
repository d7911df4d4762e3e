"""One session of a tracer, from its first block to its last: timers, snapshots, what is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from memleak_android.host.address_spaces import recorded_mapping
from memleak_android.host.capture import Capture
from memleak_android.host.commands.interrupts import stop_on_interrupt
from memleak_android.host.commands.progress import Progress
from memleak_android.host.device.parse import parse_maps
from memleak_android.host.errors import ConnectionCut, MemleakError, TargetError, TracerError
from memleak_android.host.modules import ModuleFiles
from memleak_android.host.recording import RecordingWriter
from memleak_android.host.tracers.agent import AgentDied
from memleak_android.host.tracers.base import Tracer
from memleak_android.host.wire import Block, BlockKind, Reason

# Without interval prints snapshots are still taken, after 1, 2, 4, 8 … seconds and then every 30: what the last one
# holds is reported if the agent dies.
SAFETY_FIRST_NS, SAFETY_INTERVAL_NS = 10**9, 30 * 10**9
_ERROR_KINDS: dict[int, type[MemleakError]] = {
    Reason.TARGET_ERROR: TargetError,
    Reason.TRACER_ERROR: TracerError,
}


@dataclass(slots=True)
class Schedule:
    """When a session prints and ends; None = never. Times in nanoseconds since its first STATUS."""

    duration_ns: int | None = None
    interval_ns: int | None = None
    count: int | None = None


@dataclass(slots=True)
class Session:
    """Runs `tracer` and fills `capture`.

    writer: where blocks go for which keeps() is true; evidence must be among them.
    on_whole: called after each whole snapshot that was asked for. on_snapshot: after those of the schedule. on_events: with each EVENTS payload.
    missing: afterwards, what the result lacks because of how the session went.
    """

    tracer: Tracer
    capture: Capture
    files: ModuleFiles
    writer: RecordingWriter
    progress: Progress
    schedule: Schedule = field(default_factory=Schedule)
    keeps: Callable[[int], bool] = lambda kind: True
    on_whole: Callable[[], None] = lambda: None
    on_snapshot: Callable[[], None] = lambda: None
    on_events: Callable[[bytes], None] = lambda payload: None
    missing: list[str] = field(default_factory=list)
    _printed: int = 0
    _due_ns: int = 0
    _requested: bool = False
    _stopped: bool = False
    _opened: set[tuple[int, str]] = field(default_factory=set)  # maps whose files were opened

    def run(self) -> None:
        """Raises TargetError, TracerError or ConnectionCut where there is nothing to report."""
        try:
            with stop_on_interrupt(self._stop):
                self._read()
        except (AgentDied, ConnectionCut) as error:
            if self.capture.snapshot is None:
                raise
            self.missing.append(f"{error.message} ({error.hint})")
        except KeyboardInterrupt:
            self.tracer.abandon()
            raise
        finally:
            self.tracer.close()
            self.progress.close()
        if self.writer.failure is not None:
            self.missing.append(f"{self.writer.path} could not be written on: {self.writer.failure.strerror}")
        self._raise_reported_error()

    def _read(self) -> None:
        begin: float | None = None
        for block in self.tracer.blocks():
            self._take(block)
            if begin is None and self.capture.status is not None:  # the probes are placed
                begin = time.monotonic()
            self._keep_time(0 if begin is None else int((time.monotonic() - begin) * 1e9))
            self.progress.update(self.capture.status)

    def _take(self, block: Block) -> None:
        offset = self.writer.write(block) if self.keeps(block.kind) else -1
        if block.kind == BlockKind.EVENTS:
            self.on_events(block.payload)
        before, n_maps, n_mappings = self.capture.whole, len(self.capture.maps), len(self.capture.mappings)
        self.capture.add(block, offset)
        self._open_files(n_maps, n_mappings)
        if self.capture.whole is not before and self._requested:
            self._snapshot_arrived()

    def _snapshot_arrived(self) -> None:
        self._requested = False
        self.on_whole()
        if self.schedule.interval_ns is None:
            return
        self._printed += 1
        self.on_snapshot()
        if self.is_counted_out:
            self._stop()

    @property
    def is_counted_out(self) -> bool:
        """The last interval print that was asked for is out."""
        return self._printed == self.schedule.count

    def _open_files(self, n_maps: int, n_mappings: int) -> None:
        """Files are opened as soon as they are heard of: a short-lived process takes /proc/PID with it."""
        for maps in self.capture.maps[n_maps:]:
            if (maps.pid, maps.text) not in self._opened:
                self._opened.add((maps.pid, maps.text))
                for mapping in parse_maps(maps.text):
                    self.files.note(maps.pid, mapping)
        for rows, paths in self.capture.mappings[n_mappings:]:
            for row, path in zip(rows, paths, strict=True):
                self.files.note(int(row["pid"]), recorded_mapping(row, path))

    def _keep_time(self, elapsed_ns: int) -> None:
        duration_ns = self.schedule.duration_ns
        if duration_ns is not None and elapsed_ns >= duration_ns:
            self._stop()
        interval_ns = self.schedule.interval_ns
        self._due_ns = self._due_ns or interval_ns or SAFETY_FIRST_NS
        if elapsed_ns >= self._due_ns and not self._requested and not self._stopped:
            self._requested = True
            self._due_ns += interval_ns or min(elapsed_ns, SAFETY_INTERVAL_NS)
            self._due_ns = max(self._due_ns, elapsed_ns)
            self.tracer.request_snapshot()

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.tracer.stop()

    def _raise_reported_error(self) -> None:
        """The agent's own word why there was no session; beside a whole snapshot it is only a remark."""
        if not self.capture.errors:
            return
        reason, text = self.capture.errors[0]
        if self.capture.whole is not None:
            self.missing.append(text)
            return
        message, _, hint = text.rstrip(")").rpartition(" (") if text.endswith(")") else (text, "", "")
        raise _ERROR_KINDS.get(reason, MemleakError)(message, hint)
