"""What a session reads of its processes: smaps, the target first, and allocators that it did not trace."""

import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from memleak_android.host.analysis import coverage
from memleak_android.host.analysis.growth_trend import INSTANTS_MIN
from memleak_android.host.analysis.memory_use import mappings_of
from memleak_android.host.errors import DeviceError
from memleak_android.host.heap.capture import Capture
from memleak_android.host.session import smaps
from memleak_android.host.session.other_allocators import other_allocators
from memleak_android.host.session.smaps import ReadMemory, SmapsReader, local_smaps
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.wire.blocks import MAPPING, PROCESS, Block, BlockKind, ProcessEvent, Reason
from memleak_android.host.wire.payloads import Maps
from tests.support.builders.blocks import end, hello, live_rows, snapshot
from tests.support.workloads import PROGRAMS, built

TARGET, OTHER = 100, 101
SMAPS = b"7f00-7f10 rw-p 00000000 00:00 0   [heap]\nRss:  40 kB\nPss:  20 kB\n"
MEMINFO = b"                   Pss\n    GL mtrack  307  307\n"


def captured(*blocks: object) -> Capture:
    """Two processes, of which the other one holds more."""
    capture = Capture()
    rows = live_rows({"pid": TARGET, "size": 10}, {"pid": OTHER, "size": 20, "sequence": 2})
    for block in (hello(), *snapshot(rows), *blocks):
        capture.add(block, -1)  # type: ignore[arg-type]
    capture.session |= {"pid": TARGET}
    return capture


def read_pids(capture: Capture) -> list[int]:
    session = capture.session.fields
    return [one["pid"] for one in [session["memory"], *session["memory_of_others"]]]


def test_the_target_is_the_first_as_soon_as_it_can_be_read() -> None:
    capture, closed = captured(), {TARGET}

    def read(pid: int) -> bytes:
        if pid in closed:
            raise DeviceError("denied")
        return SMAPS

    looks = SmapsReader(capture, ReadMemory(read))
    looks.snapshot_arrived()
    assert read_pids(capture) == [OTHER]
    closed.clear()
    looks._next_s = 0.0  # the time is come
    looks.snapshot_arrived()
    assert read_pids(capture) == [TARGET, OTHER]
    closed.add(TARGET)
    looks._next_s = 0.0
    looks.snapshot_arrived()
    assert read_pids(capture) == [TARGET, OTHER], "what there was of it"


@pytest.mark.parametrize(
    ("seconds", "reading_s", "least"), [(40, 0.3, 6), (40, 0.001, 39), (5, 0.8, INSTANTS_MIN)]
)
def test_growth_can_be_judged_of_many_mappings(
    monkeypatch: pytest.MonkeyPatch, seconds: int, reading_s: float, least: int
) -> None:
    """Reading those of 15,000 mappings took 0.3 s, on a busy machine 0.8 s. A short session needs each of its readings."""
    clock = [100.0]
    monkeypatch.setattr(smaps, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def read(pid: int) -> bytes:
        clock[0] += reading_s / 2  # of two processes
        return SMAPS

    capture = captured()
    looks = SmapsReader(capture, ReadMemory(read))
    for second in range(seconds):
        clock[0] = max(clock[0], 101.0 + second)
        looks.snapshot_arrived()
    balance = capture.session.fields["balance"]
    assert len(balance["rows"]) >= least and len(balance["rows"]) + balance.get("unread", 0) == seconds


def test_shared_memory_that_is_used_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's buffers: what a backend reads becomes resident, and no memory is allocated."""
    texts = (f"7f00-7ff00 rw-s 0 00:01 5 /dev/zero (deleted)\nRss: {4 * second} kB\n" for second in range(9))
    monkeypatch.setattr(smaps, "time", SimpleNamespace(monotonic=lambda: 1.0))
    capture = captured()
    looks = SmapsReader(capture, ReadMemory(lambda pid: next(texts).encode() if pid == TARGET else b""))
    for _ in range(9):
        looks.snapshot_arrived()
    rows = capture.session.fields["balance"]["rows"]
    assert [row[1:5] for row in rows] == [[0, 0, 0, 0]] * 9


def test_every_process_that_runs_has_a_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose allocations are not seen holds no block; one that ended before it could be judged is left out."""
    monkeypatch.setattr(smaps, "time", SimpleNamespace(monotonic=lambda: 1.0))
    started = np.zeros(3, PROCESS)
    started["pid"], started["parent"], started["event"] = range(OTHER, OTHER + 3), TARGET, ProcessEvent.FORK
    started["comm"] = b"worker"
    ended = started[1:2].copy()
    ended["event"] = ProcessEvent.EXIT
    capture = captured(Block(BlockKind.PROCESS, started.tobytes()))
    read: list[int] = []
    looks = SmapsReader(capture, ReadMemory(lambda pid: read.append(pid) or SMAPS))
    looks.snapshot_arrived()
    capture.add(Block(BlockKind.PROCESS, ended.tobytes()), -1)
    looks.snapshot_arrived()
    assert read == [TARGET, OTHER, OTHER + 1, OTHER + 2, TARGET, OTHER, OTHER + 2]
    balances = capture.session.fields["balance_of_others"]
    assert {pid: len(each["rows"]) for pid, each in balances.items()} == {str(OTHER): 2, str(OTHER + 2): 2}


@pytest.mark.parametrize("read", [lambda pid: b"", local_smaps])
def test_a_process_that_has_ended_adds_no_row_to_the_balance(read: Callable[[int], bytes]) -> None:
    """A zombie's file is empty: as a row of zeros it would end any growth."""
    with subprocess.Popen(["/bin/true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        capture = captured()
        SmapsReader(capture, ReadMemory(lambda pid: read(zombie.pid))).snapshot_arrived()
    assert not capture.session.fields.keys() & {"balance", "memory"}


def test_a_process_that_may_not_be_read_is_not_taken_as_balanced() -> None:
    capture = captured()
    SmapsReader(capture, ReadMemory(MagicMock(side_effect=PermissionError))).snapshot_arrived()
    assert capture.session.fields["balance"]["unread"] == 1


def test_memory_that_is_held_by_a_descriptor_alone() -> None:
    """It is in no mapping; where it is mapped it counts once."""
    file = os.memfd_create("held\n0-0")
    os.write(file, bytes(1 << 20))
    shared = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR)
    os.write(shared, bytes(1 << 20))
    mapped = os.memfd_create("mapped")
    os.write(mapped, bytes(1 << 20))
    with mmap.mmap(mapped, 1 << 20) as memory:
        memory.read()
        found = [(each.name, each.rss) for each in mappings_of(local_smaps(os.getpid()).decode())]
    inode = os.fstat(shared).st_ino
    for each in (file, mapped, shared):
        os.close(each)
    assert [each for each in found if each[0].startswith(("/memfd:", "/dev/shm/"))] == [
        ("/memfd:mapped (deleted)", 1 << 20),
        ("/memfd:held\\0120-0 (deleted)", 1 << 20),
        (f"/dev/shm/#{inode} (deleted)", 1 << 20),
    ]


def test_a_text_that_may_lack_its_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ended while it was read: after the text its file is empty."""
    cut = MagicMock()
    cut.__enter__.return_value.read.side_effect = [SMAPS, b""]
    monkeypatch.setattr(Path, "open", lambda *_: cut)
    assert local_smaps(1) == b""


def test_a_second_libc_makes_what_hooks_saw_incomplete() -> None:
    """dlmopen() of a plugin: a live process has the library twice at once."""
    libc = b"7f%d0-7f%d8 r--p 00000000 fe:00 339 /lib/libc.so.6\nRss: 4 kB\n7f%d8-7f%d9 r-xp 00026000 fe:00 339 /lib/libc.so.6\n"
    for copies, count in ((1, 0), (2, 1)):
        capture = captured()
        capture.session |= {"tracer": "plt"}
        text = SMAPS + b"".join(libc % (i, i, i, i) for i in range(copies))
        SmapsReader(capture, ReadMemory({TARGET: text, OTHER: text}.__getitem__)).snapshot_arrived()
        assert len([*coverage._of_namespaces(capture)]) == count
        capture.session |= {"tracer": "bpf"}
        assert not [*coverage._of_namespaces(capture)], "probes are in the file"


def asked_reader(capture: Capture, ask: Callable[[int], bytes]) -> None:
    looks = SmapsReader(capture, ReadMemory(lambda pid: SMAPS, ask))
    looks.snapshot_arrived()
    looks.ask_drivers()


def test_drivers_are_asked_at_the_end() -> None:
    capture = captured(end(Reason.STOPPED))
    asked_reader(capture, lambda pid: MEMINFO)
    assert capture.session.fields["memory"]["parts"]["driver_graphics"] == (307 * 1024, 307 * 1024)
    assert not capture.remarks


def test_ended_processes_are_not_read() -> None:
    capture, asked = captured(end(Reason.TARGET_EXIT)), list[int]()
    asked_reader(capture, lambda pid: bytes(asked.append(pid) or 0))
    assert asked == []


@pytest.mark.parametrize("error", [DeviceError("no answer within 15 s"), OSError("gone")])
def test_a_refusal_is_reported_once(error: Exception) -> None:
    capture, asked = captured(end(Reason.STOPPED)), list[int]()

    def refuse(pid: int) -> bytes:
        asked.append(pid)
        raise error

    asked_reader(capture, refuse)
    assert len(asked) == len(capture.remarks) == 1
    assert capture.remarks[0].startswith("graphics memory of drivers is unknown: ")
    assert "driver_graphics" not in capture.session.fields["memory"]["parts"]


SAID = "own_allocator brings a malloc of its own, which was not traced ({} own_allocator traces it)"


@pytest.mark.parametrize(
    ("about", "flags", "way_out"),
    [
        ({"tracer": "preload"}, ["-Wl,-Bsymbolic"], "--tracer bpf -O"),
        ({"tracer": "plt"}, ["-Wl,-Bsymbolic"], "--tracer bpf -O"),
        ({"tracer": "preload"}, ["-Wl,-Bsymbolic-functions"], "--tracer bpf -O"),
        ({"tracer": "preload"}, ["-fvisibility=hidden"], "--tracer bpf -O"),
        ({"tracer": "bpf", "about": {"allocator": "/lib/libc.so.6"}}, ["-fvisibility=hidden"], "-O"),
        ({"tracer": "preload"}, [], None),  # its calls come to the shim
        ({"tracer": "bpf", "about": {"allocator": "/lib/libc.so.6"}}, [], "-O"),
    ],
)
def test_a_library_with_a_malloc_of_its_own(
    about: dict[str, object], flags: list[str], way_out: str | None
) -> None:
    library = built(PROGRAMS / "own_allocator", "-shared", "-fPIC", "-fno-builtin", *flags)
    assert said_of(library, about) == ([SAID.format(way_out)] if way_out else [])


@pytest.mark.parametrize(
    ("content", "permissions", "is_known"),
    [
        (None, "r-xp", False),  # deleted
        (b"\x7fELF, cut", "r-xp", False),
        (b"JiTD", "r-xp", True),  # a compiler's notes for perf
        (None, "r-xs", True),  # a compiler's code
    ],
)
def test_a_file_that_cannot_be_read_is_not_taken_to_bring_none(
    content: bytes | None, permissions: str, is_known: bool, tmp_path: Path
) -> None:
    file = tmp_path / "plugin.so"
    file.write_bytes(content or b"")
    if content is None:
        file.unlink()
    found = said_of(file, {"tracer": "preload"}, permissions)
    assert found == ([] if is_known else ["plugin.so could not be read: it may bring a malloc of its own"])


@pytest.mark.parametrize(("path", "is_asked"), [("//anon", False), ("/gone/plugin.so", True)])
def test_code_without_a_file_brings_no_malloc(path: str, is_asked: bool) -> None:
    """As the kernel reports a compiler's code to BPF sessions."""
    capture = Capture()
    capture.session |= {"tracer": "bpf", "about": {"allocator": "/lib/libc.so.6"}}
    rows = np.zeros(1, MAPPING)
    rows["pid"], rows["protection"] = os.getpid(), 5
    capture.mappings.append((rows, [path]))
    assert len(other_allocators(capture, ModuleFiles(LocalFiles(is_running=True)))) == is_asked


def said_of(file: Path, about: dict[str, object], permissions: str = "r-xp") -> list[str]:
    capture = Capture()
    capture.session |= about
    inode = file.stat().st_ino if file.exists() else 7
    line = f"7f0000000000-7f0000001000 {permissions} 00000000 00:00 {inode} {file}\n"
    capture.maps.append(Maps(os.getpid(), 100, line))
    return [reason.text for reason in other_allocators(capture, ModuleFiles(LocalFiles(is_running=True)))]
