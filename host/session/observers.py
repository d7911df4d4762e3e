"""observers of a session: the base class, and those that print intervals, record the target and unwind early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from memleak_android.host.analysis.pipeline import View, make_profile
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import find_survivors
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.timeline import SITES_MAX
from memleak_android.host.recording.file import RecordingWriter
from memleak_android.host.stacks.file_identities import FileIdentity, encode_identities
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.stacks.stack_unwinder import StackUnwinder
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.host.tracers.agent.session import AgentSession


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
