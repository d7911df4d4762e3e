"""Reads smaps of the target's processes after snapshots, and the memory that their drivers count at the end."""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from memleak_android.host.analysis.balance import Balance, add_row, add_unread, balance_of
from memleak_android.host.analysis.growth_trend import INSTANTS_MIN
from memleak_android.host.analysis.memory_use import (
    DRIVERS,
    PROCESSES_MAX,
    SECOND_LIBC,
    Mapping,
    driver_bytes,
    has_second_libc,
    mappings_of,
    memory_parts,
)
from memleak_android.host.analysis.pipeline import target_pid
from memleak_android.host.analysis.process_sums import process_ends, process_names
from memleak_android.host.errors import MemleakError
from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.heap.high_water import heap_space
from memleak_android.host.machine.adb.modules import RemoteFiles
from memleak_android.host.machine.target import Target
from memleak_android.host.session.observers import SessionObserver, pids_by_size
from memleak_android.host.wire.blocks import Reason
from memleak_android.unwind.file_reading import status_in_mount
from memleak_android.unwind.user_space_mounts import memory_mounts, mount_of

SMAPS_BYTES_MAX = 64 << 20
# The pause between readings: 100 times of a reading, but a quarter of the time so far is enough if that is 5 times. A
# process of many mappings takes long to read. Growth needs five: on this machine the first ones pause for what
# each took beyond a second.
COST_SHARE, COST_SHARE_MIN, TIME_SHARE = 100, 5, 1 / 4
_INODES = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ (\S+ \d+) +/", re.MULTILINE
)  # proc_pid_smaps(5); device before
_IN_MEMORY = re.compile(r"/memfd:|/dev/shm/.* \(deleted\)$")
_USED_LINES = "^([0-9a-f]+-|Rss:|Pss:)"  # a fifth of a file that may have megabytes

_OTHERS_MAX = 64  # balances of processes that have ended among them
DESCRIPTORS_MAX = 1 << 16  # of a process that are looked at

MEMINFO_BYTES_MAX = 1 << 20
MEMINFO_TIMEOUT_S = 15.0  # dumpsys itself gives up after 10
MEMINFO_S_MAX = 20.0  # of all processes together

ReadText = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """Of a process: its smaps, and what `dumpsys meminfo` prints of it. Either raises OSError or DeviceError; b"" = not readable."""

    smaps: ReadText
    meminfo: ReadText = lambda pid: b""  # Linux has no `dumpsys`


def local_smaps(pid: int) -> bytes:
    """b"" of a process that ended meanwhile: the text may lack its end. Raises OSError."""
    with Path(f"/proc/{pid}/smaps").open("rb") as file:
        text = file.read(SMAPS_BYTES_MAX)
        file.seek(0)
        return text + _unmapped_memory(pid, text) if file.read(1) else b""


def _unmapped_memory(pid: int, smaps: bytes) -> bytes:
    """Files of memfd_create(), deleted ones of shm_open(), that the process holds by a descriptor alone: mappings without addresses."""
    mapped, found, ours = set(_INODES.findall(smaps)), dict[bytes, bytes](), os.memfd_create("ours")
    mounts = {mount_of(ours), *memory_mounts(pid)}
    os.close(ours)
    for entry in islice(os.scandir(f"/proc/{pid}/fd"), DESCRIPTORS_MAX):
        with suppress(OSError):  # it was closed
            name = os.readlink(entry.path).replace("\n", "\\012")  # as in smaps
            file = status_in_mount(entry.path, mounts) if _IN_MEMORY.match(name) else None
            if file and (inode := _inode(file)) not in mapped:
                line = f"0-0 ---- 0 0:0 {file.st_ino} {name}\nRss: {file.st_blocks // 2} kB\n"
                found[inode] = os.fsencode(line)
    return b"".join(found.values())


def _inode(file: os.stat_result) -> bytes:
    """As in smaps."""
    return b"%02x:%02x %d" % (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino)


LOCAL_MEMORY = ReadMemory(local_smaps)


def device_memory(target: Target, modules: RemoteFiles) -> ReadMemory:
    """Smaps as root, else as the app, where one is measured; meminfo as the shell, who may ask for it."""

    def read(pid: int) -> bytes:
        run_as = None if target.has_root else modules.run_as
        argv = ["grep", "-E", _USED_LINES, f"/proc/{pid}/smaps"]
        return target.run(argv, as_root=target.has_root, run_as=run_as, limit_bytes=SMAPS_BYTES_MAX).out

    def read_meminfo(pid: int) -> bytes:
        argv = ["dumpsys", "meminfo", str(pid)]
        return target.run(argv, timeout_s=MEMINFO_TIMEOUT_S, limit_bytes=MEMINFO_BYTES_MAX).out

    return ReadMemory(read, read_meminfo)


@dataclass(slots=True)
class SmapsReader(SessionObserver):
    """Reads after snapshots; the last reading goes into the session, as its "memory" and "memory_of_others".

    Its "balance" has a row for each reading of the target, "balance_of_others" those of the processes that are followed.
    """

    capture: Capture
    read: ReadMemory = LOCAL_MEMORY
    _next_s: float = 0.0
    _begin_s: float = 0.0
    _others: dict[int, dict[str, Any]] = field(default_factory=dict)
    _first: dict[int, list[Mapping]] = field(default_factory=dict)  # of each process, at its first reading

    def snapshot_arrived(self) -> None:
        """Keeps the last reading of a target that is gone or must not be read."""
        snapshot, begin = self.capture.whole, time.monotonic()
        if snapshot is None or not target_pid(self.capture):
            return
        if begin < self._next_s:
            self._add_unread()
            return
        pids = self._pids(snapshot)
        found = [reading for pid in pids if (reading := self._read(snapshot, pid))]
        target = target_pid(self.capture)
        readings = {pid: reading for pid, reading in self._stored().items() if pid == target}
        readings |= {reading["pid"]: reading for reading in found}
        self._begin_s, now = self._begin_s or begin, time.monotonic()
        cost = now - begin
        least = max(cost * COST_SHARE_MIN, (now - self._begin_s) * TIME_SHARE)
        session = self.capture.session
        n_rows = len(session.fields.get("balance", {"rows": ()})["rows"])
        is_first = n_rows < INSTANTS_MIN and not session.target.serial
        self._next_s = now + (max(0.0, cost - 1.0) if is_first else min(cost * COST_SHARE, least))
        self._store(readings)

    def _pids(self, snapshot: Snapshot) -> list[int]:
        """Those that run, without blocks too: what a worker allocates may not be seen. Growth needs five readings of each."""
        first, others = pids_by_size(self.capture, snapshot)
        if self.capture.only_pids is not None:
            return first
        left_out = {*first, *process_ends(self.capture)}
        running = dict.fromkeys(pid for pid in (*others, *process_names(self.capture)) if pid not in left_out)
        self._first = {pid: known for pid, known in self._first.items() if pid in {*first, *running}}
        judged = {pid for pid, known in self._others.items() if len(known["rows"]) >= INSTANTS_MIN}
        lasting = [each for each in self._others.items() if each[0] in judged or each[0] in running]
        self._others = dict(lasting[-_OTHERS_MAX:])
        return [*first, *sorted(running, key=lambda pid: pid not in self._first)][:PROCESSES_MAX]

    def ask_drivers(self) -> None:
        """Once, if the target outlives the measurement: its app has to answer."""
        readings, deadline = self._stored(), time.monotonic() + MEMINFO_S_MAX
        for pid in (
            readings if self.capture.end is None or self.capture.end["reason"] == Reason.STOPPED else ()
        ):
            if time.monotonic() > deadline:
                break
            try:
                size = driver_bytes(self.read.meminfo(pid).decode("utf-8", "replace"))
            except (OSError, MemleakError) as error:
                self.capture.remarks.append(f"graphics memory of drivers is unknown: {error}")
                break
            readings[pid]["parts"] |= {DRIVERS: (size, size)} if size else {}
        self._store(readings)

    def _read(self, snapshot: Snapshot, pid: int) -> dict[str, Any] | None:
        is_here = not self.capture.session.target.serial  # a device has another clock
        now_ns = round(time.monotonic() * 1e9) if is_here else 0
        try:
            text = self.read.smaps(pid).decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except (OSError, MemleakError):
            if pid == target_pid(self.capture):
                self._add_unread()
            return None
        live = snapshot.live[snapshot.live["pid"] == pid]
        mappings = [*mappings_of(text)]
        if not mappings:  # it is a zombie, whose memory is gone
            return None
        if pid == target_pid(self.capture) and has_second_libc(text):
            self.capture.session |= {SECOND_LIBC: True}
        balance = balance_of(mappings, live, self._first.setdefault(pid, mappings))
        self._add_balance(snapshot, max(now_ns, snapshot.timestamp_ns), pid, balance)
        parts = memory_parts(mappings, live["address"][attribution.is_heap(live)])
        reading = {"pid": pid, "timestamp_ns": snapshot.timestamp_ns, "by_block": True, "parts": parts}
        return reading | {"tracked": heap_space(live)} if parts else None

    def _add_balance(self, snapshot: Snapshot, read_ns: int, pid: int, balance: Balance) -> None:
        taken_ns = snapshot.timestamp_ns
        if pid == target_pid(self.capture):
            known = self.capture.session.fields.get("balance")
            self.capture.session |= {"balance": add_row(known, taken_ns, read_ns, balance)}
            return
        row = add_row(self._others.pop(pid, None), taken_ns, read_ns, balance)
        self._others[pid] = row  # the last read are the last

    def _add_unread(self) -> None:
        self.capture.session |= {"balance": add_unread(self.capture.session.fields.get("balance"))}

    def _stored(self) -> dict[int, dict[str, Any]]:
        session = self.capture.session.fields
        first, others = session.get("memory"), session.get("memory_of_others", [])
        return {reading["pid"]: reading for reading in ([first, *others] if first else [])}

    def _store(self, readings: dict[int, dict[str, Any]]) -> None:
        if readings:
            first, *others = readings.values()
            balances = {str(pid): known for pid, known in self._others.items()}
            self.capture.session |= {
                "memory": first,
                "memory_of_others": others,
                "balance_of_others": balances,
            }
