"""One session of a tracer, from its first block to its last: timers, snapshots, what is kept."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Literal

from memleak_android.host.errors import ConnectionCut, ExitCode
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.recording.file import RecordingWriter
from memleak_android.host.session.marks import Marks
from memleak_android.host.session.observers import SessionObserver
from memleak_android.host.session.progress import Progress
from memleak_android.host.session.scenario import Scenario
from memleak_android.host.stacks.address_spaces import recorded_mapping
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.tracers.agent.session import AgentDied, reported_error
from memleak_android.host.tracers.agent.session_options import Tracer
from memleak_android.host.wire.blocks import Block, BlockKind

# Without interval prints snapshots are still taken: what the last one holds is reported if the agent dies, and growth is
# judged by all. Small ones after each second, later after each sixteenth of the time so far; large ones after each quarter of it
# at the latest, so that a run of eight seconds has as many as growth needs. None waits longer than 30 s.
SAFETY_FIRST_NS, SAFETY_INTERVAL_NS = 10**9, 30 * 10**9
SAFETY_TIME_SHARE, SAFETY_TIME_SHARE_MIN = 16, 4
SNAPSHOT_BYTES_PER_S = 1 << 18  # on average, of tables that are to be sent oftener than that

LIVE_BYTES_PER_S = 1 << 20  # on average, under the live view

PEAK_RISE = 1.05  # a rise above the highest level that gets a snapshot of its own
PEAK_BYTES_PER_S = 1 << 20  # on average, of these


def safety_interval_ns(elapsed_ns: int, snapshot_bytes: int) -> int:
    """Until the next snapshot without interval prints. snapshot_bytes: size of the last one."""
    by_size = snapshot_bytes * 10**9 // SNAPSHOT_BYTES_PER_S
    wanted = max(SAFETY_FIRST_NS, elapsed_ns // SAFETY_TIME_SHARE, by_size)
    return min(wanted, max(elapsed_ns // SAFETY_TIME_SHARE_MIN, SAFETY_FIRST_NS), SAFETY_INTERVAL_NS)


@dataclass(slots=True)
class Schedule:
    """When a session prints and ends; None = never. Nanoseconds since the first STATUS after the target has begun.

    refresh_ns: time between snapshots for the live view, without an interval.
    scenario: its runs end with snapshots, instead of intervals.
    """

    duration_ns: int | None = None
    interval_ns: int | None = None
    count: int | None = None
    refresh_ns: int | None = None
    scenario: Scenario | None = None


@dataclass(slots=True)
class Session:
    """Runs `tracer` and fills `capture`.

    keeps_all: every block goes to the writer, not evidence alone.
    at_end: called right after the last whole snapshot while the target still lives. holds_end: a command is held at its
    exit for that.
    missing: afterwards, what the result lacks because of how the session went.
    """

    tracer: Tracer
    capture: Capture
    files: ModuleFiles
    writer: RecordingWriter
    progress: Progress
    schedule: Schedule = field(default_factory=Schedule)
    marks: Marks = field(default_factory=Marks)
    observers: Sequence[SessionObserver] = ()
    keeps_all: bool = True
    at_end: Callable[[], None] | None = None
    holds_end: bool = False
    missing: list[str] = field(default_factory=list)
    _printed: int = 0
    _due_ns: int = 0
    _peak_ns: int = 0  # when the last snapshot for the peak was asked for
    _requested: bool = False
    # of the snapshot that was requested last, beside the schedule
    _purpose: Literal["", "peak", "mark", "scan", "scanned"] = ""
    _stopped: bool = False
    _interrupted: bool = False
    _is_held: bool = False  # the command, at its end
    _opened: set[tuple[int, str]] = field(default_factory=set)  # maps whose files were opened

    def run(self) -> None:
        """Raises TargetError, TracerError or ConnectionCut where there is nothing to report, with ExitCode.ABORTED after
        Ctrl-C; KeyboardInterrupt for a second one.
        """
        try:
            with stop_on_interrupt(self._interrupt):
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
            if self.schedule.scenario is not None:
                self.schedule.scenario.close()
        self.capture.session |= {"marks": self.marks.recorded}
        if self.writer.failure is not None:
            self.missing.append(f"{self.writer.path} could not be written on: {self.writer.failure.strerror}")
        self._raise_reported_error()

    def _read(self) -> None:
        begin: float | None = None
        for block in self.tracer.blocks():
            self._take(block)
            if begin is None and self.capture.status is not None and self.tracer.has_begun:
                begin = time.monotonic()  # the probes are placed
            elapsed_ns = 0 if begin is None else int((time.monotonic() - begin) * 1e9)
            self._keep_time(elapsed_ns)
            self._follow_requests()
            if block.kind == BlockKind.STATUS:
                self._follow_peak(elapsed_ns)
                for observer in self.observers:
                    observer.status_arrived(elapsed_ns)
            self.progress.update(self.capture.status, self.capture.session.tracing.unit)

    def _take(self, block: Block) -> None:
        offset = self.writer.write(block) if self.keeps_all or block.kind == BlockKind.EVIDENCE else -1
        if block.kind == BlockKind.EVENTS:
            for observer in self.observers:
                observer.events_arrived(block.payload)
        before, n_maps, n_mappings = self.capture.whole, len(self.capture.maps), len(self.capture.mappings)
        self.capture.add(block, offset)
        self._open_files(n_maps, n_mappings)
        if block.kind == BlockKind.EXIT_STOP and self.at_end is not None:
            self._is_held = True
            self._purpose, self._requested = "", True
            self.tracer.request_snapshot()
        if self.capture.whole is not before and self._requested:
            self._snapshot_arrived()

    def _snapshot_arrived(self) -> None:
        self._requested = False
        if self.at_end is not None and (self._is_held or self._stopped):
            self.at_end()  # before anything slow
        for observer in self.observers:
            observer.snapshot_arrived()
        if self._is_held and self.at_end is not None:
            self.at_end = None  # with --follow the session goes on
            self.tracer.resume()
            if self._stopped:
                self.tracer.stop()
            return
        if self._purpose and not self._stopped:
            self._end_of_extra()
            return
        if self._stopped and self.at_end is not None:
            self.tracer.stop()
            return
        scenario = self.schedule.scenario
        if scenario is not None and self.capture.whole is not None and not self._stopped:
            scenario.snapshot_taken(self.capture.whole.timestamp_ns)
            if scenario.is_over:
                self._stop()
        if self.schedule.interval_ns is None:
            return
        self._printed += 1
        for observer in self.observers:
            observer.interval_ended()
        if self.is_counted_out:
            self._stop()

    def _end_of_extra(self) -> None:
        """A snapshot outside the schedule has arrived."""
        if self._purpose == "mark" and self.capture.whole is not None:
            self.marks.snapshot_taken(self.capture.whole.timestamp_ns)
        self.capture.is_whole_extra = self._purpose == "peak"
        scans, self._purpose = self._purpose == "scan", ""
        if scans:
            for observer in self.observers:
                observer.scan()
            self._request_extra("scanned")

    @property
    def is_counted_out(self) -> bool:
        """The last of --count interval prints is done."""
        return self._printed == self.schedule.count

    def _open_files(self, n_maps: int, n_mappings: int) -> None:
        """Opens files of new mappings at once: /proc/PID ends with a short-lived process."""
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
        if self.schedule.scenario is not None:
            self._follow_scenario(self.schedule.scenario)
            return
        interval_ns = self.schedule.interval_ns
        self._due_ns = self._due_ns or interval_ns or SAFETY_FIRST_NS
        if elapsed_ns >= self._due_ns and not self._requested and not self._stopped:
            self._requested = True
            self._due_ns += interval_ns or self._safety_interval_ns(elapsed_ns)
            self._due_ns = max(self._due_ns, elapsed_ns)
            self.tracer.request_snapshot()

    def _follow_requests(self) -> None:
        """Requests snapshots for marks and scans."""
        if self._requested or self._stopped or self.capture.status is None:
            return
        if self.marks.wants_snapshot():
            self._request_extra("mark")
        elif any(observer.wants_scan() for observer in self.observers):
            self._request_extra("scan")

    def _request_extra(self, purpose: Literal["peak", "mark", "scan", "scanned"]) -> None:
        self._purpose, self._requested = purpose, True
        self.tracer.request_snapshot()

    def _follow_peak(self, elapsed_ns: int) -> None:
        """Requests a snapshot at a new peak of the counters; less often for large tables."""
        capture = self.capture
        if self._requested or self._stopped or capture.status is None or capture.whole is None:
            return
        if capture.high_water.counted is not None:
            return  # the target itself measures its peak
        level = int(capture.status["alloc_bytes"]) - int(capture.status["free_bytes"])
        sent = capture.whole.live.nbytes + capture.whole.keys.nbytes
        is_soon = elapsed_ns < self._peak_ns + sent * 10**9 // PEAK_BYTES_PER_S
        if level > capture.high_water.space * PEAK_RISE and not is_soon:
            self._peak_ns = elapsed_ns
            self._request_extra("peak")

    def _follow_scenario(self, scenario: Scenario) -> None:
        if self.capture.status is None or self._requested or self._stopped:
            return
        if scenario.wants_snapshot():
            self._requested = True
            self.tracer.request_snapshot()

    def _safety_interval_ns(self, elapsed_ns: int) -> int:
        last = self.capture.whole
        sent = 0 if last is None else last.live.nbytes + last.keys.nbytes
        if self.schedule.refresh_ns is not None:
            return max(self.schedule.refresh_ns, sent * 10**9 // LIVE_BYTES_PER_S)
        return safety_interval_ns(elapsed_ns, sent)

    def _interrupt(self) -> None:
        self._interrupted = True
        self._stop()

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            if self.at_end is None or self.capture.status is None:  # not begun: no snapshot will come
                self.tracer.stop()
            else:
                if self.holds_end:
                    self.tracer.detach()
                self._requested = True
                self.tracer.request_snapshot()

    def _raise_reported_error(self) -> None:
        """Raises the agent's reason for having no session. After blocks were seen it is only noted as missing."""
        if not self.capture.errors:
            return
        reason, text = self.capture.errors[0]
        whole = self.capture.whole
        if whole is not None and (len(whole.live) or self.capture.processes):
            self.missing.append(text)
            return
        error = reported_error(reason, text)
        if self._interrupted:  # before anything was measured, for the reason that the agent names
            error.exit_code = ExitCode.ABORTED
        raise error


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM calls `stop`, a further one raises KeyboardInterrupt."""
    seen = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
