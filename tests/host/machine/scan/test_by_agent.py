"""Memory that is scanned by the agent and by this process: the same is found, and the target goes on."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from numpy.typing import NDArray

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import FilesInPlace, LocalMachine
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.scan import blocks, local
from memleak_android.host.machine.scan.blocks import ScanReader, decode_scanned
from memleak_android.host.machine.scan.local import scan_memory
from memleak_android.host.machine.scan.words import MemoryScan
from memleak_android.host.wire.blocks import SCAN, Block, BlockKind
from memleak_android.host.wire.payloads import MalformedBlock
from tests.support.attaching import until
from tests.support.running_program import blocked, wait_until_asleep
from tests.support.stack_capture import stopped
from tests.support.workloads import built

NO_BLOCKS = np.empty(0, np.uint64)
ONE_PIECE = np.array([0x1000, 65 | 2 << 32, 1 << 3, 1, 0xAAAA, 0xBBBB], "<u8").tobytes()


@pytest.fixture
def agent() -> ReadingAgent:
    machine = LocalMachine()
    files = FilesInPlace({"memleakd": find_binary("memleakd", machine.arch)})
    return ReadingAgent(machine, lambda user: files)


def words_into_heap(scan: MemoryScan) -> NDArray[np.void]:
    """Those of memory; registers differ from stop to stop."""
    low, high = scan.allocator[0].tolist()
    chosen = (scan.value >= low) & (scan.value < high) & (scan.source > 0)
    return np.rec.fromarrays([scan.source[chosen], scan.value[chosen]], names="source,value")


def references(scan: MemoryScan) -> NDArray[np.void]:
    return np.sort(words_into_heap(scan))


@contextmanager
def silent(*argv: str | Path, **environment: str) -> Iterator[int]:
    """A program that has said what it had to, and waits: its pid."""
    with subprocess.Popen(
        argv, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        wait_until_asleep(process.pid)
        yield process.pid
        process.kill()


def test_it_finds_what_the_host_itself_finds(agent: ReadingAgent) -> None:
    with silent(built("reachable_blocks", "-O0"), "60") as pid:
        remote, local = blocks.scan_by_agent(agent, pid, NO_BLOCKS), scan_memory(pid, NO_BLOCKS)
        assert "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text()
    assert (remote.allocator.tolist(), remote.libc.tolist()) == (
        local.allocator.tolist(),
        local.libc.tolist(),
    )
    assert len(references(local)) > 1000
    assert np.array_equal(references(remote), references(local))
    assert (remote.scanned_bytes, remote.n_threads) == (local.scanned_bytes, 2)
    assert remote.stopped_ns > 0


def test_neither_looks_into_the_shims_own_memory(agent: ReadingAgent) -> None:
    shim = find_binary("libmemleak.so", LocalMachine().arch)
    with silent(built("shim_refers", "-O0"), "60", LD_PRELOAD=str(shim)) as pid:
        both = blocks.scan_by_agent(agent, pid, NO_BLOCKS), scan_memory(pid, NO_BLOCKS)
        mappings = [one for one in parse_maps(Path(f"/proc/{pid}/maps").read_text()) if one.path == str(shim)]
    base, named_end = mappings[0].start, max(one.end for one in mappings)
    with shim.open("rb") as file:  # what follows .bss may be one mapping with it
        extent = max(one["p_vaddr"] + one["p_memsz"] for one in ELFFile(file).iter_segments("PT_LOAD"))
    assert base + extent - named_end > 1 << 20, "most of it has no name"
    for scan in both:
        assert not ((scan.source >= base) & (scan.source < base + extent)).any()
    assert np.array_equal(references(both[0]), references(both[1]))
    assert both[0].scanned_bytes == both[1].scanned_bytes


@pytest.mark.proof
def test_more_than_one_thread_of_the_agent_finds(agent: ReadingAgent) -> None:
    """Three million references in a row: more than fills what one of its threads takes of the room at once."""
    script = "import sys; a = bytearray(64); many = [a] * 3_000_000; print(flush=True); sys.stdin.read()"
    with silent(sys.executable, "-c", script, PYTHONMALLOC="malloc") as pid:
        remote, local = blocks.scan_by_agent(agent, pid, NO_BLOCKS), scan_memory(pid, NO_BLOCKS)
    assert len(references(local)) > 3_000_000
    assert np.array_equal(references(remote), references(local))
    assert remote.scanned_bytes == local.scanned_bytes


def test_a_process_that_ended(agent: ReadingAgent) -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        pass
    with pytest.raises(TargetError, match=f"process {process.pid} could not be searched: it has ended"):
        blocks.scan_by_agent(agent, process.pid, NO_BLOCKS)


def test_neither_looks_into_a_process_with_a_tracer(agent: ReadingAgent) -> None:
    with blocked(["/bin/cat"]) as pid, stopped(pid):
        with pytest.raises(TargetError, match="could not be searched: Operation not permitted"):
            blocks.scan_by_agent(agent, pid, NO_BLOCKS)
        with pytest.raises(TargetError, match="could not be stopped: Operation not permitted"):
            scan_memory(pid, NO_BLOCKS)


@pytest.mark.parametrize(("word_bytes", "second"), [(8, 0x1200), (4, 0x1100)])
def test_a_piece(word_bytes: int, second: int) -> None:
    """The bits of the 4th and the 65th word are set; a second piece begins with bits of its own."""
    pieces, values = decode_scanned(ONE_PIECE * 2, word_bytes)
    assert values.tolist() == [0xAAAA, 0xBBBB] * 2
    assert pieces.sources().tolist() == [0x1000 + 3 * word_bytes, second] * 2


@pytest.mark.parametrize(
    "payload", [ONE_PIECE[:8], ONE_PIECE[:24], ONE_PIECE[:-8], ONE_PIECE[:8] + b"\xff" * 40]
)
def test_pieces_that_are_cut(payload: bytes) -> None:
    with pytest.raises(MalformedBlock):
        decode_scanned(payload, 8)


def test_bits_without_values() -> None:
    with pytest.raises(MalformedBlock, match="1 values for 2 bits"):
        decode_scanned(np.array([0x1000, 64 | 1 << 32, 3, 0xAAAA], "<u8").tobytes(), 8)


def test_a_scan_without_an_end_is_refused() -> None:
    reader = ScanReader(is_arm64=False)
    reader.add(Block(BlockKind.SCAN, np.zeros((), np.dtype(SCAN)).tobytes()[:-4] + b"\x08\0\0\0"))
    with pytest.raises(TargetError, match="broke off"):
        reader.scan(None, np.empty(0, np.uint64))
    with pytest.raises(MalformedBlock):
        reader.add(Block(BlockKind.SCAN, bytes(SCAN.itemsize)))


@pytest.mark.parametrize("has_agent", [True, False])
def test_the_agent_looks_where_it_can(monkeypatch: pytest.MonkeyPatch, has_agent: bool) -> None:
    name, other = (
        ("scan_memory", pytest.fail) if has_agent else ("find_binary", lambda *_: Path("/bin/false"))
    )
    monkeypatch.setattr(blocks, name, other)
    with blocked(["/bin/cat"]) as pid:
        scan = blocks.scan_local_memory(pid, NO_BLOCKS)
    assert scan.n_threads == 1 and scan.scanned_bytes > 4096


def test_neither_can() -> None:
    with pytest.raises(TargetError, match="ended before its memory could be scanned"):
        blocks.scan_local_memory(2**22 + 1, NO_BLOCKS)


def tracers(pid: int) -> set[str]:
    """Of its threads."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return {match for text in statuses for match in re.findall(r"^TracerPid:\t(\d+)", text, re.MULTILINE)}


def test_process_goes_on():
    with blocked(["/bin/cat"]) as pid:
        scan = scan_memory(pid, NO_BLOCKS)
        assert tracers(pid) == {"0"}
        wait_until_asleep(pid)  # it wakes up from the stop, and goes to sleep again
        assert scan.n_threads == 1
        heap = next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "[heap]" in line)
        low, high = (int(word, 16) for word in heap.split()[0].split("-"))
        assert [low, high] in scan.allocator.tolist()
        assert ((scan.value >= low) & (scan.value < high)).any()
        assert 4096 < scan.scanned_bytes < 4 << 20  # of 8 MiB of stack that may be used only what is


def test_thread_that_does_not_stop(monkeypatch: pytest.MonkeyPatch):
    """A thread that has not stopped on request is released when the requesting thread ends."""
    monkeypatch.setattr(local, "_DEADLINE_S", 0.2)
    with subprocess.Popen([built("vfork_waits")], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(1) == b"w"
            with pytest.raises(TargetError, match="did not stop within"):
                scan_memory(process.pid, NO_BLOCKS)
            # Python has joined a thread before the kernel has
            assert until(lambda: tracers(process.pid) == {"0"})
        finally:
            child = Path(f"/proc/{process.pid}/task").glob("*/children")
            for pid in " ".join(path.read_text() for path in child).split():
                os.kill(int(pid), signal.SIGKILL)
            process.kill()
