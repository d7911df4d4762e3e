"""Observers of a session: the base class, and those that print intervals and calls, record the target and unwind early."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from memleak_android.host.analysis.pipeline import View, make_profile, target_pid
from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.heap.survivors import find_survivors
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.timeline import SITES_MAX
from memleak_android.host.recording.file import RecordingWriter
from memleak_android.host.stacks.file_identities import FileIdentity, encode_identities
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.stacks.stack_unwinder import StackUnwinder
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import PairPlan
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, Function
from memleak_android.host.wire.payloads import decode_events

_NAMES = {function.value: function.name.lower() for function in Function}
_RELEASING = {
    Function.FREE,
    Function.CFREE,
    Function.FREE_SIZED,
    Function.FREE_ALIGNED_SIZED,
    Function.MUNMAP,
}


class SessionObserver:
    """Takes part in a session. All calls come in the session's thread; what is not overridden does nothing."""

    def events_arrived(self, payload: bytes) -> None:
        """An EVENTS block, before the capture has it."""

    def status_arrived(self, elapsed_ns: int) -> None:
        """A STATUS block. elapsed_ns: since the first."""

    def snapshot_arrived(self) -> None:
        """Each whole snapshot that was requested."""

    def interval_ended(self) -> None:
        """A snapshot of --interval, after snapshot_arrived()."""

    def wants_scan(self) -> bool:
        """Polled. If true, a snapshot is taken, scan() is called, and another snapshot follows."""
        return False

    def scan(self) -> None:
        """Right after a whole snapshot, while the target runs."""


@dataclass(slots=True)
class TargetFacts(SessionObserver):
    """Keeps in the session what the tracer knows of its target."""

    capture: Capture
    tracer: AgentSession

    def snapshot_arrived(self) -> None:
        self.capture.session |= self.tracer.target


@dataclass(slots=True)
class IntervalPrinter(SessionObserver):
    """Makes a report at each interval. write: gets the profile in `view`, and one of blocks of all ages."""

    capture: Capture
    unwinder: StackUnwinder
    symbolizer: Symbolizer
    view: View
    write: Callable[[Profile, Profile], None]

    def interval_ended(self) -> None:
        survivors = find_survivors(self.capture, self.unwinder)
        all_ages = replace(self.view, older_ns=0, show_allocs=False, most_sites=SITES_MAX)
        shown, all_shown = (
            make_profile(self.capture, survivors, self.symbolizer, view) for view in (self.view, all_ages)
        )
        self.write(shown, all_shown)


@dataclass(slots=True)
class DeviceUnwinder(SessionObserver):
    """Unwinds after each snapshot: a device that disconnects takes its files with it.

    unwinder: None if another observer unwinds. writer: gets the identities of files; None without a recording.
    """

    capture: Capture
    files: ModuleFiles
    unwinder: StackUnwinder | None
    writer: RecordingWriter | None
    _identified: set[FileIdentity] = field(default_factory=set)

    def snapshot_arrived(self) -> None:
        if self.unwinder is not None:
            find_survivors(self.capture, self.unwinder)
        if self.writer is not None and (found := set(self.files.identities()) - self._identified):
            self._identified |= found
            self.writer.write(encode_identities(found))


def pids_by_size(capture: Capture, snapshot: Snapshot) -> tuple[list[int], list[int]]:
    """The processes that the session is about, and the others that hold something, the largest first."""
    target, only = target_pid(capture), capture.only_pids
    live = snapshot.live[attribution.is_heap(snapshot.live)]
    pids, number = np.unique(live["pid"], return_inverse=True)
    held = np.bincount(number, live["size"].astype(np.float64), len(pids))
    others = [pid for pid in pids[np.argsort(-held)].tolist() if pid != target and only is None]
    return list(only or [target]), others


@dataclass(frozen=True, slots=True)
class EventPrinter(SessionObserver):
    """Prints `SECONDS PID/TID malloc(24) = 0x55d0…`, in the order in which the calls were recorded.

    pairs: names the functions numbered from FIRST_PAIR_FUNCTION on.
    """

    pairs: PairPlan | None = None

    def events_arrived(self, payload: bytes) -> None:
        names, releasing, lines = dict(_NAMES), set[int](_RELEASING), list[str]()
        if self.pairs is not None:
            names |= {FIRST_PAIR_FUNCTION + i: name for i, (_, name) in enumerate(self.pairs.names)}
            releasing |= set(self.pairs.releases)
        for row in decode_events(payload).tolist():
            timestamp_ns, address, size, _, old, pid, tid, function, error = row
            name = names.get(function, f"function {function}")
            if function in releasing:
                call = f"{name}({address:#x}{f', {size}' if size else ''})"
            else:
                arguments = f"{old:#x}, {size}" if old else f"{size}"
                result = f"0 ({os.strerror(error)})" if error else f"{address:#x}"
                call = f"{name}({arguments}) = {result}"
            lines.append(f"{timestamp_ns / 1e9:.6f} {pid}/{tid} {call}")
        print("\n".join(lines), file=sys.stdout)
