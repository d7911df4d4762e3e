"""Children that hold most of the memory of a program: `timeout 60 ./server`, or a master and its workers.

And those of its own program that outlive it: daemons.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from memleak_android.host.analysis.growth_trend import INSTANTS_MIN
from memleak_android.host.analysis.pipeline import target_pid
from memleak_android.host.console import printable
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.local.process import read_text
from memleak_android.host.machine.parse import decimal, parse_maps
from memleak_android.host.profile.coverage import Answer, Condition
from memleak_android.host.profile.coverage import Reason as Lack
from memleak_android.host.session.observers import SessionObserver
from memleak_android.host.wire.blocks import Reason

_LOOKED_AT_MAX = 64  # threads, and children
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_SHARE_MIN = 0.5  # of the target's own memory
_SET_ANEW = {"_", "PWD", "OLDPWD", "SHLVL", "LD_PRELOAD"}
_LEFT_OUT = "left_out"  # the field of SESSION


@dataclass(slots=True)
class UnmeasuredChildren(SessionObserver):
    """Names the largest child, from its second snapshot on: one that is about to exec still has its parent's memory.

    Of a running service from the fifth: it forks to save its data, and until then growth is not judged either.
    For a session on this machine that does not follow children.
    """

    capture: Capture
    _seen: Counter[int] = field(default_factory=Counter)
    _text: str = ""

    def snapshot_arrived(self) -> None:
        target = target_pid(self.capture)
        if not target or self.capture.session.tracing.tracer == "kernel":
            return
        children = {pid: _anonymous_kb(pid) for pid in _children(target)}
        self._seen = Counter({pid: self._seen[pid] + 1 for pid in children})
        least = INSTANTS_MIN if self.capture.session.target.is_attached else 2
        lasting = {pid: kb for pid, kb in children.items() if self._seen[pid] >= least}
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


def detached(capture: Capture) -> list[Lack]:
    """The process in which a command goes on that has itself ended: an orphan of the same program, begun meanwhile.

    By fork() and setsid() its parent, group and session may all be new, and its parent may have ended before any snapshot.
    """
    target, end, hello = target_pid(capture), capture.end, capture.hello
    if not target or hello is None or end is None or int(end["reason"]) != Reason.TARGET_EXIT:
        return []
    mapped = {
        mapping.path for maps in capture.maps if maps.pid == target for mapping in parse_maps(maps.text)
    }
    mapped.update(*(paths for _, paths in capture.mappings))
    if program := shutil.which(capture.session.target.command.partition(" ")[0]):
        mapped.add(os.path.realpath(program))  # it may have ended before its maps were read
    since_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic() + int(hello["monotonic_ns"]) / 1e9
    adopting = {1, *_ancestors(os.getpid())}
    found = (pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if pid != target)
    return [
        Lack(
            Condition.PROGRAMS,
            Answer.UNKNOWN,
            f"its child process {pid} goes on unmeasured: use --follow, or --pid {pid}",
        )
        for pid in found
        if _goes_on(pid, mapped, since_s, adopting)
    ][:1]


def _ancestors(pid: int) -> Iterator[int]:
    """One of them gets an orphan (PR_SET_CHILD_SUBREAPER(2const)). Another session's tracer, with a target of its own, is none."""
    with suppress(OSError, ValueError, IndexError):
        while pid := _lineage(pid)[1]:
            yield pid


def _goes_on(pid: int, mapped: Collection[str], since_s: float, adopting: Collection[int]) -> bool:
    """mapped: files of the target, its executable among them. since_s: of the session, since boot."""
    with suppress(OSError, ValueError, IndexError):
        if os.readlink(f"/proc/{pid}/exe") not in mapped:
            return False
        state, parent, session, start_s = _lineage(pid)
        _, _, of_parent, parent_start_s = _lineage(parent)
        is_orphan = parent in adopting and of_parent != session and parent_start_s < since_s
        is_new = start_s + 1 / _TICKS > since_s
        return state not in "ZX" and is_orphan and is_new and _began_as_ours(pid)
    return False  # it has ended, or is another user's


def _began_as_ours(pid: int) -> bool:
    """With the environment that the command got, as far as shells and tracers leave it: another's start has another."""
    its = read_text(f"/proc/{pid}/environ").split("\0")
    own = (f"{name}={value}" for name, value in os.environ.items() if name not in _SET_ANEW)
    return {*own} <= {*its}


def _lineage(pid: int) -> tuple[str, int, int, float]:
    """State, parent, session and the last tick before its start since boot, of proc_pid_stat(5). Raises OSError, ValueError or IndexError."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3]), int(fields[19]) / _TICKS


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
