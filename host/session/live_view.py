"""`--live`: sends a running session to the view, and handles the view's requests."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from memleak_android.host.analysis.pipeline import View, make_profile, target_pid
from memleak_android.host.errors import MemleakError
from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import Survivors, find_survivors
from memleak_android.host.live.messages import Begin, Head, Mark, Notice, Save, Scan, Stop, ViewRequest
from memleak_android.host.live.view import SITES_MAX, LeakScan, sites_message
from memleak_android.host.profile.losses import most_lost
from memleak_android.host.profile.profile import Profile
from memleak_android.host.session.live_window import LiveWindow, live_window
from memleak_android.host.session.marks import Marks
from memleak_android.host.session.observers import SessionObserver
from memleak_android.host.session.reachability import MemoryLook, ScanMemory
from memleak_android.host.stacks.stack_unwinder import StackUnwinder
from memleak_android.host.symbols.symbolizer import Symbolizer

REFRESH_NS = 2 * 10**9  # between snapshots, without --interval
RATE_S = 2.0  # window of the allocation rate
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class LivePlan:
    """target: in the user's words. output: the file for the command's output, None without a command.

    save: writes a report and returns a line that names it. seen: gets the largest stacks of each snapshot shown.
    """

    target: str
    output: Path | None
    is_local: bool
    can_scan: bool  # reachability is possible
    save: Callable[[Profile], str]
    seen: Callable[[Profile], None] = lambda profile: None


@dataclass(slots=True)
class LiveView(SessionObserver):
    """Between a session and the window. What the session calls returns at once, but for scan().

    A thread unwinds and symbolizes the latest snapshot, then rests as long as that took.
    """

    plan: LivePlan
    capture: Capture
    unwinder: StackUnwinder
    symbolizer: Symbolizer
    marks: Marks
    view: View
    scan_memory: ScanMemory
    _stack: ExitStack = field(default_factory=ExitStack)
    _window: LiveWindow | None = None
    _thread: threading.Thread | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _next: Capture | None = None
    _look: MemoryLook | None = None  # to be judged by the next snapshot
    _looked: LeakScan | None = None  # result of the last scan
    _wants_look: bool = False
    _wants_save: bool = False
    _is_over: bool = False
    _rates: list[tuple[float, int]] = field(default_factory=list)  # when, allocations

    def __enter__(self) -> Self:
        output = str(self.plan.output) if self.plan.output else ""
        begin = Begin(self.plan.target, output, can_scan=self.plan.can_scan)
        self._window = self._stack.enter_context(live_window(begin, self._ask))
        self.marks.on_set = lambda name, count: self._say(f"mark {name}: {count}")
        self._thread = threading.Thread(target=self._look_at_snapshots, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._stack.close()
        if self._thread is not None:
            self._thread.join()  # the session may use the unwinder again

    def status_arrived(self, elapsed_ns: int) -> None:
        """A STATUS block."""
        status, session = self.capture.status, self.capture.session
        if status is None or self._window is None:
            return
        now, allocations = time.monotonic(), int(status["alloc_objects"])
        self._rates = [rate for rate in self._rates if rate[0] > now - RATE_S] + [(now, allocations)]
        first, past = self._rates[0]
        self._window.post(
            Head(
                tracer=session.tracing.tracer,
                elapsed_s=elapsed_ns / 1e9,
                space=int(status["alloc_bytes"]) - int(status["free_bytes"]),
                objects=allocations - int(status["free_objects"]),
                allocations=allocations,
                allocations_per_s=(allocations - past) / (now - first) if now > first else 0.0,
                lost=int(status["lost"].sum()),
                unit=session.tracing.unit,
                lost_most=most_lost(status["lost"].tolist()),
                resident_bytes=resident_bytes(target_pid(self.capture)) if self.plan.is_local else None,
            )
        )

    def snapshot_arrived(self) -> None:
        """A whole snapshot is in the capture."""
        frozen = self.capture.frozen()
        frozen.session |= {"marks": self.marks.recorded}
        if self._look is not None:
            self._look.capture = frozen
        with self._changed:
            self._next = frozen
            self._changed.notify()

    def wants_scan(self) -> bool:
        """True once after each request of the user."""
        wanted, self._wants_look = self._wants_look, False
        return wanted

    def scan(self) -> None:
        """Stops the target once, between two snapshots."""
        look = MemoryLook(self.capture.frozen(), self.scan_memory)
        look.take()
        self._look = look

    def _ask(self, wanted: ViewRequest) -> None:
        """In the window's thread."""
        match wanted:
            case Stop():
                os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does outside of the view
            case Mark():
                self.marks.ask(wanted.name)
            case Scan():
                self._wants_look = True
            case Save():
                with self._changed:
                    self._wants_save = True
                    self._changed.notify()

    def _say(self, text: str, is_problem: bool = False) -> None:
        if self._window is not None:
            self._window.post(Notice(text, is_problem))

    def _look_at_snapshots(self) -> None:
        last: Capture | None = None
        rest_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._wants_save, rest_s)
                self._changed.wait_for(lambda: self._is_over or self._wants_save or self._next is not None)
                if self._is_over:
                    return
                last, self._next = self._next or last, None
                wants_save, self._wants_save = self._wants_save, False
            begin = time.monotonic()
            self._show(last, wants_save)
            rest_s = time.monotonic() - begin

    def _show(self, capture: Capture | None, wants_save: bool) -> None:
        if capture is None:
            self._say("there is no snapshot yet", True)
            return
        try:
            survivors = self._judged(capture, find_survivors(capture, self.unwinder))
            shown = replace(self.view, show_allocs=False, most_sites=SITES_MAX)
            profile = make_profile(capture, survivors, self.symbolizer, shown)
            if profile.leaks:
                self._looked = LeakScan.of(profile)
            self.plan.seen(profile)
            stacks = survivors.stacks.stacks_of(survivors.trace)
            if self._window is not None:
                self._window.post(
                    sites_message(
                        profile, len(np.unique(stacks[stacks != attribution.UNATTRIBUTED])), self._looked
                    )
                )
            if wants_save:
                self._say(self.plan.save(make_profile(capture, survivors, self.symbolizer, self.view)))
        except (MemleakError, OSError) as error:
            self._say(str(error), True)

    def _judged(self, capture: Capture, survivors: Survivors) -> Survivors:
        """Adds the kinds of blocks if this is the snapshot after a scan, and notifies the user."""
        look = self._look
        if look is None or look.capture is not capture:
            return survivors
        self._look = None
        judged = look.judge(survivors)
        self._say(capture.remarks[-1] if judged.leak_kinds is not None else look.refusal, judged is survivors)
        return judged


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a local process (proc_pid_statm(5)); None if it is gone or unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES if pid else None
    except (OSError, IndexError, ValueError):
        return None
