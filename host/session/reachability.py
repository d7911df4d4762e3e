"""`--reachability`: one scan of the target's memory at the end of the measurement, and the kind of each block."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.pipeline import target_pid
from memleak_android.host.analysis.reachability import (
    NOT_JUDGED,
    blocks_at_stop,
    kinds_of_live,
    leak_kinds,
    was_quiet,
)
from memleak_android.host.analysis.totals import lost_by_cause
from memleak_android.host.errors import MemleakError
from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.host.profile.losses import ACCOUNTING_LOSSES
from memleak_android.host.profile.profile import LeakKind
from memleak_android.host.session.observers import pids_by_size
from memleak_android.host.wire.blocks import ProcessEvent, Rows

_PROCESSES_MAX = 64  # beside the target


# Scans a process for references to its blocks. The last argument is EXIT_STOP, if it is stopped already.
ScanMemory = Callable[[int, Addresses, Rows | np.void | None], MemoryScan]


@dataclass(slots=True)
class MemoryLook:
    """take() is called while the session still runs, right after a whole snapshot; judge() with the final one.

    Each process that holds blocks is scanned by itself, the target first, so their stops are not simultaneous.
    """

    capture: Capture
    scan: ScanMemory
    refusal: str = ""  # why nothing is known of the target
    _scans: dict[int, MemoryScan] = field(default_factory=dict)
    _refused: dict[int, str] = field(default_factory=dict)
    _before: Snapshot | None = None

    def take(self) -> None:
        """A failure is only remarked; the measurement goes on."""
        self._before = self.capture.whole
        assert self._before is not None
        for pid in self._pids(self._before):
            try:
                self._scans[pid] = self._look(self._before, pid)
            except (MemleakError, OSError) as error:
                self._refused[pid] = str(error)
        reason = self._refused.pop(target_pid(self.capture), "")
        if reason:
            self.refusal = f"reachability is not known: {reason}"
            self.capture.remarks.append(self.refusal)

    def _pids(self, snapshot: Snapshot) -> list[int]:
        first, others = pids_by_size(self.capture, snapshot)
        self._refused.update((pid, f"only {_PROCESSES_MAX} are looked at") for pid in others[_PROCESSES_MAX:])
        return [*first, *others[:_PROCESSES_MAX]]

    def _look(self, snapshot: Snapshot, pid: int) -> MemoryScan:
        live, held = snapshot.live, self.capture.exit_stop
        addresses = live["address"][(live["pid"] == pid) & attribution.is_heap(live)]
        return self.scan(pid, addresses, held if held is not None and held["pid"] == pid else None)

    def judge(self, survivors: Survivors) -> Survivors:
        """Adds the kind of each block that existed at the scan of its process."""
        before, after = self._before, survivors.snapshot
        if before is None:
            text = "reachability is not known: the target ended before its memory could be looked at"
            self.capture.remarks.append(f"{text} (it is looked at when --duration is over, or at Ctrl-C)")
        if before is None or not self._scans:
            return survivors
        kinds = np.full(len(after.live), NOT_JUDGED, np.int8)
        for pid, scan in self._scans.items():
            mine = after.live["pid"] == pid
            own_before, own_after = before.of([pid]), after.of([pid])
            blocks = blocks_at_stop(own_before.live, own_after.live, scan.timestamp_ns)
            found = leak_kinds(scan, blocks, self._unrecorded(pid, own_before, own_after))
            kinds[mine] = kinds_of_live(blocks, found, int(mine.sum()))
        self._remark(after, kinds)
        return replace(survivors, leak_kinds=kinds)

    def _remark(self, after: Snapshot, kinds: NDArray[np.int8]) -> None:
        target = target_pid(self.capture)
        others = [scan for pid, scan in self._scans.items() if pid != target]
        looked = attribution.is_heap(after.live) & np.isin(after.live["pid"], list(self._scans))
        said = [self._stop_text(self._scans[target])] if target in self._scans else []
        if others:
            longest_ns, n_bytes = (
                max(one.stopped_ns for one in others),
                sum(one.scanned_bytes for one in others),
            )
            what = f"{len(others)} more process{'es' * (len(others) > 1)}"
            said.append(f"{what} stood still for at most {longest_ns / 1e6:.1f} ms ({n_bytes:,} bytes)")
        if n_unjudged := int((looked & (kinds == NOT_JUDGED)).sum()):
            said.append(f"{n_unjudged:,} allocations are too young to be judged")
        if after.live["sample_bytes"].any():
            said.append("only sampled blocks were judged, and sums of kinds are of these alone")
        if self.capture.session.target.is_attached:
            said.append("memory allocated before the tracer attached, in use or freed, counts as in use")
        if any(self._is_forked(pid) for pid in self._scans):
            said.append("memory that a process had when it was forked counts as in use")
        self.capture.remarks.append(f"reachability: {'; '.join(said)}")
        if self._refused:
            pid, reason = next(iter(self._refused.items()))
            what = f"{len(self._refused)} process{'es' * (len(self._refused) > 1)}"
            self.capture.remarks.append(f"reachability of {what} is not known: of {pid}, {reason}")

    def _stop_text(self, scan: MemoryScan) -> str:
        who = f"{scan.n_threads} thread{'s' * (scan.n_threads > 1)} stood still"
        if self.capture.exit_stop is not None:
            who = "the command was held at its end"
        return f"{who} for {scan.stopped_ns / 1e6:.1f} ms while {scan.scanned_bytes:,} bytes were searched"

    def _unrecorded(self, pid: int, before: Snapshot, after: Snapshot) -> LeakKind | None:
        """The kind of a block that only unrecorded memory of the allocator refers to."""
        lost, status = lost_by_cause(self.capture), self.capture.status
        is_cut = not ACCOUNTING_LOSSES.isdisjoint(lost)
        is_cut |= status is not None and int(status["untracked_frees"]) > 0
        is_cut |= self._is_forked(pid) or bool(after.live["sample_bytes"].any())
        if is_cut or (self.capture.session.target.is_attached and pid == target_pid(self.capture)):
            return LeakKind.STILL_REACHABLE
        return None if was_quiet(before, after) else LeakKind.POSSIBLY_LOST

    def _is_forked(self, pid: int) -> bool:
        """It has its parent's memory, of which nothing was recorded as its own. The shim reports no forks: any child may be one."""
        events = {int(row["event"]) for rows in self.capture.processes for row in rows[rows["pid"] == pid]}
        return ProcessEvent.EXEC not in events and (
            pid != target_pid(self.capture) or ProcessEvent.FORK in events
        )
