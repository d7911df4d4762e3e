"""A snoop session, from its first block to its last."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memleak_android.host.errors import MemleakError, TargetError, TracerError
from memleak_android.host.snoop.call_stacks import KINDS, CallStacks
from memleak_android.host.snoop.events import CallEvent, CallJoin
from memleak_android.host.snoop.placing import SnoopPlan
from memleak_android.host.snoop.statistics import FunctionStatistics, by_total_time, summarize
from memleak_android.host.tracers.agent.session import AgentDied
from memleak_android.host.tracers.agent.session_options import Tracer
from memleak_android.host.wire.blocks import Block, BlockKind, Lost, Reason, Rows
from memleak_android.host.wire.calls import (
    PATCHED_CODE,
    BadCalls,
    ProbeKind,
    decode_calls,
    decode_probe_results,
    decode_statistics,
)
from memleak_android.host.wire.payloads import decode_error, decode_gap, decode_status, decode_text

_ERROR_KINDS: dict[int, type[MemleakError]] = {
    Reason.TARGET_ERROR: TargetError,
    Reason.TRACER_ERROR: TracerError,
}
# Losses by cause, with the way out; docs/use/snoop.md, "What is lost".
_LOST_SENTENCES = {
    Lost.EVENTS: "events were lost because the ring was full; the statistics are exact; use --rate, --filter or --statistics",
    Lost.RING_FULL: "stacks were lost because the ring was full; use --rate or --filter",
    Lost.THREADS_FULL: "calls of threads beyond the limit of 2048 were not counted",
    Lost.PENDING_FULL: "calls nested deeper than 128 were counted, but not their returns",
    Lost.MAPPINGS: "calls came before their address was known (possible before Linux 5.15)",
    Lost.PROGRAMS: "processes beyond the limit of 1024 were not traced",
    Lost.MISSED_ENTRY: "returns belong to calls whose entry was not seen",
}
_PATCHED = "its code differs from its file (a hook), and a uprobe in it would end the process"


class CallSink(Protocol):
    """A consumer of calls."""

    def write(self, events: Iterable[CallEvent]) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class SnoopTimes:
    """Nanoseconds since the probes were placed; None: never."""

    duration_ns: int | None = None
    interval_ns: int | None = None
    count: int | None = None


@dataclass(slots=True)
class SnoopSession:
    """Runs `tracer` and passes its calls to `sinks`.

    on_armed: called once with the number of probed functions.
    on_interval: called with the statistics at each interval.
    statistics: of each function, the longest total time first.
    problems: probes that were not placed.
    missing: what the result lacks.
    """

    tracer: Tracer
    plan: SnoopPlan
    sinks: Sequence[CallSink] = ()
    times: SnoopTimes = field(default_factory=SnoopTimes)
    on_armed: Callable[[int], None] = lambda n_functions: None
    on_interval: Callable[[list[FunctionStatistics]], None] = lambda functions: None
    on_problem: Callable[[str], None] = lambda sentence: None
    stacks: CallStacks | None = None
    statistics: list[FunctionStatistics] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    n_events: int = 0
    tracer_cpu_ns: int = 0
    _n_placed: int = 0
    _n_printed: int = 0
    _parts: dict[int, FunctionStatistics] = field(default_factory=dict)
    _begin: float | None = None
    _due_ns: int = 0
    _is_requested: bool = False
    _is_stopped: bool = False
    _is_ended: bool = False
    _error: MemleakError | None = None

    def run(self) -> None:
        """Runs to the end. Raises TargetError, TracerError or ConnectionCut if there is no result."""
        stacks = self.stacks
        join = CallJoin(self.plan.functions, stacks.take) if stacks else CallJoin(self.plan.functions)
        try:
            for block in self.tracer.blocks():
                self._add(block, join)
                self._check_time()
        except AgentDied as error:
            if self._begin is None:
                raise
            self.missing.append(f"{error.message} ({error.hint})")
        finally:
            self.tracer.close()
            for sink in self.sinks:
                sink.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Requests the end; the last calls and the statistics follow. Safe in a signal handler."""
        if not self._is_stopped:
            self._is_stopped = True
            self.tracer.stop()

    def _add(self, block: Block, join: CallJoin) -> None:
        if self.stacks is not None and block.kind in KINDS:
            self.stacks.add(block)
        if block.kind == BlockKind.CALLS:
            calls = decode_calls(block.payload)
            self.n_events += len(calls.rows)
            events = list(join.events(calls)) if self.sinks else []
            for sink in self.sinks:
                sink.write(events)
        elif block.kind == BlockKind.CALL_STATISTICS:
            self._count(block.payload)
        elif block.kind == BlockKind.STATUS:
            self._add_status(block.payload)
        elif block.kind == BlockKind.PROBE_RESULTS:
            self._add_results(decode_probe_results(block.payload))
        elif block.kind == BlockKind.GAP:
            self.on_problem(decode_gap(block.payload).text)
        elif block.kind == BlockKind.LOG:
            self.on_problem(decode_text(block.payload))
        elif block.kind == BlockKind.ERROR:
            reason, text = decode_error(block.payload)
            message, _, hint = text.rstrip(")").rpartition(" (") if text.endswith(")") else (text, "", "")
            self._error = _ERROR_KINDS.get(reason, MemleakError)(message, hint)
        elif block.kind == BlockKind.END:
            self._is_ended = True

    def _add_results(self, results: Rows) -> None:
        self._n_placed += int(((results["error"] == 0) & (results["kind"] == ProbeKind.ENTRY)).sum())
        results = results[results["function"] < len(self.plan.functions)]
        for row in results[results["error"] != 0].tolist():
            number, pid, error, _, kind = row
            what = "not probed" if kind == ProbeKind.ENTRY else "one of its returns is not probed"
            where = f" in process {pid}" if pid else ""
            reason = _PATCHED if error == PATCHED_CODE else os.strerror(error)
            sentence = f"{self.plan.functions[number].name}: {what}{where}: {reason}"
            self.problems.append(sentence)
            self.on_problem(sentence)

    def _add_status(self, payload: bytes) -> None:
        status = decode_status(payload)
        self.tracer_cpu_ns = int(status["tracer_cpu_ns"])
        for cause, sentence in _LOST_SENTENCES.items():
            if count := int(status["lost"][cause]):
                self.lost[f"{cause.name.lower()}"] = count
                self._set_missing(sentence, count)
        if self._begin is None:
            self._begin = time.monotonic()
            self.on_armed(self._n_placed)

    def _set_missing(self, sentence: str, count: int) -> None:
        self.missing[:] = [known for known in self.missing if not known.endswith(sentence)]
        self.missing.append(f"{count:,} {sentence}")

    def _count(self, payload: bytes) -> None:
        for counted in decode_statistics(payload):
            number = int(counted.row["function"])
            if number >= len(self.plan.functions):
                raise BadCalls(f"statistics of function {number}, of {len(self.plan.functions)}")
            function = self.plan.functions[number]
            self._parts[number] = summarize(function.name, counted, function.has_return)
        if len(self._parts) < len(self.plan.functions):
            return
        self.statistics, self._parts = by_total_time(list(self._parts.values())), {}
        if self._is_requested:
            self._is_requested = False
            self._n_printed += 1
            self.on_interval(self.statistics)
            if self._n_printed == self.times.count:
                self.stop()

    def _check_time(self) -> None:
        if self._begin is None or self._is_stopped:
            return
        elapsed_ns = int((time.monotonic() - self._begin) * 1e9)
        if self.times.duration_ns is not None and elapsed_ns >= self.times.duration_ns:
            self.stop()
        elif self.times.interval_ns is not None:
            self._due_ns = self._due_ns or self.times.interval_ns
            if elapsed_ns >= self._due_ns and not self._is_requested:
                self._is_requested = True
                self._due_ns = max(self._due_ns + self.times.interval_ns, elapsed_ns)
                self.tracer.request_snapshot()
