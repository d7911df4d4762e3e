"""Children that hold most of the memory of a program: `timeout 60 ./server`, or a master and its workers."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from memleak_android.host.analysis.pipeline import target_pid
from memleak_android.host.console import printable
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.local.process import read_text
from memleak_android.host.machine.parse import decimal
from memleak_android.host.session.observers import SessionObserver

_LOOKED_AT_MAX = 64  # threads, and children
_SHARE_MIN = 0.5  # of the target's own memory
_LEFT_OUT = "left_out"  # the field of SESSION


@dataclass(slots=True)
class UnmeasuredChildren(SessionObserver):
    """Names the largest child, from its second snapshot on: one that is about to exec still has its parent's memory.

    For a session on this machine that does not follow children.
    """

    capture: Capture
    _known: set[int] = field(default_factory=set)
    _text: str = ""

    def snapshot_arrived(self) -> None:
        target = target_pid(self.capture)
        if not target or self.capture.session.tracing.tracer == "kernel":
            return
        children = {pid: _anonymous_kb(pid) for pid in _children(target)}
        lasting = {pid: kb for pid, kb in children.items() if pid in self._known}
        self._known = {*children}
        if not lasting:
            return
        largest = max(lasting, key=lambda pid: lasting[pid])
        if lasting[largest] > _SHARE_MIN * _anonymous_kb(target):
            self._tell(largest)

    def _tell(self, pid: int) -> None:
        others = [one for one in self.capture.session.findings.left_out if one != self._text]
        name = printable(_field(pid, "Name") or "?")
        self._text = f"its child process {pid} ({name}) was not measured: use --follow, or --pid {pid}"
        self.capture.session |= {_LEFT_OUT: [*others, self._text]}


def _children(pid: int) -> list[int]:
    """Of all threads: proc_tid_children(5)."""
    found = list[int]()
    with suppress(OSError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"))[:_LOOKED_AT_MAX]:
            found += map(int, read_text(f"/proc/{pid}/task/{thread}/children").split())
    return found[:_LOOKED_AT_MAX]


def _anonymous_kb(pid: int) -> int:
    """Resident anonymous memory; 0 of a process that has ended."""
    return decimal(_field(pid, "RssAnon").split(" ")[0]) or 0


def _field(pid: int, name: str) -> str:
    """Of /proc/PID/status; "" = it has none."""
    return next((value.strip() for key, value in _fields(pid) if key == name), "")


def _fields(pid: int) -> Iterator[tuple[str, str]]:
    with suppress(OSError):
        for line in read_text(f"/proc/{pid}/status").splitlines():
            key, _, value = line.partition(":")
            yield key, value
