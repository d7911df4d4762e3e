"""A session attached to a running process by its hooks, and what must be the same before and after."""

import hashlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.wire.blocks import BlockKind, Rows
from memleak_android.host.wire.payloads import (
    decode_chunk,
    decode_hooked,
    decode_status,
    decode_stops,
    decode_text,
)
from tests.support.attaching import descendant
from tests.support.containers import GLIBC, NAMESPACES, need_namespaces
from tests.support.preload_session import find_parts
from tests.support.workloads import ROOT, built

_SOURCE = ROOT / "tests" / "device" / "programs" / "attach_workload.c"
_INT3 = 0xCC


@dataclass
class Attached:
    """sizes: live blocks by size in the last snapshot. error: the text of an ERROR block."""

    sizes: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    remarks: list[str] = field(default_factory=list)
    error: str = ""
    stops: list[Rows] = field(default_factory=list)  # STOP, of attach and detach
    hooked: list[Rows] = field(default_factory=list)


def start_agent(
    pid: int, hook: str = "plt", hook_lines: Sequence[str] = ()
) -> tuple[LocalChannel, AgentSession]:
    agent, shim = find_parts()
    lines = SessionOptions(pid=pid).lines()
    lines += [f"shim {quote(os.fspath(shim), safe='/')}", f"hook {hook}", *hook_lines]
    channel = LocalChannel([str(agent), "preload"])
    return channel, AgentSession(hook, channel, lines)


def attach(
    pid: int,
    meanwhile: Callable[[], object] = lambda: None,
    hook: str = "plt",
    hook_lines: Sequence[str] = (),
) -> Attached:
    """A session from its beginning to its end; `meanwhile` is called once the process is attached to."""
    _, session = start_agent(pid, hook, hook_lines)
    result = Attached()
    try:
        for block in session.blocks():
            if block.kind == BlockKind.LOG:
                result.remarks.append(decode_text(block.payload))
            elif block.kind == BlockKind.STOPS:
                result.stops.append(decode_stops(block.payload))
                if len(result.stops) == 1:
                    meanwhile()
                    session.stop()
            elif block.kind == BlockKind.HOOKED:
                result.hooked.append(decode_hooked(block.payload))
            elif block.kind == BlockKind.ERROR:
                result.error = decode_text(block.payload[8:])
            elif block.kind == BlockKind.STATUS:
                result.lost = int(decode_status(block.payload)["lost"].sum())
            elif block.kind == BlockKind.LIVE:
                result.sizes += Counter(decode_chunk(block).rows["size"].tolist())
    finally:
        session.close()
    return result


def workload(*flags: str) -> Path:
    """All slots are filled at its start: what changes in them later is ours."""
    return built(_SOURCE, "-Wl,-z,now", *flags)


@contextmanager
def started(program: str | Path, *words: str | Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has said that it is ready. It does not outlive the block."""
    with subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def loaded(n_threads: int, program: Path | None = None) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """The workload, or what else was made of it, with so many busy threads, ready."""
    return started(program or workload(), "load", str(n_threads))


def workload_root(folder: Path) -> Path:
    """A root with the workload and an empty /proc."""
    need_namespaces()
    root = folder / "root"
    for file in GLIBC:
        (root / file.parent.relative_to("/")).mkdir(parents=True)
        shutil.copy(file, root / file.relative_to("/"))
    shutil.copy(workload(), root / "attach_workload")
    (root / "proc").mkdir()
    return root


@contextmanager
def contained(folder: Path, *, has_proc: bool = True) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The workload in a root, a network and a PID namespace of its own, and its pid here."""
    root = workload_root(folder)
    where = ["--net", f"--root={root}", *(["--mount-proc=/proc"] if has_proc else [])]
    with started(*NAMESPACES, *where, "/attach_workload", "load", "2") as process:
        yield process, descendant(process.pid, "attach_workload")


def order(process: subprocess.Popen[bytes], byte: bytes) -> bytes:
    """The line with which the program answers a byte of its standard input."""
    process.stdin.write(byte)
    process.stdin.flush()
    return process.stdout.readline()


def leak(process: subprocess.Popen[bytes]) -> None:
    """23 blocks of 5003 bytes, which stay."""
    assert order(process, b"l") == b"leaked\n"


def address_of(pid: int, path: str, name: str) -> int:
    """Of a function of the mapped file whose path ends so."""
    first = next(one for one in LocalProcess.open(pid).mappings() if one.path.endswith(path))
    elf = ElfFile(first.path)
    (symbol,) = elf.static_functions({name}) or (s for s in elf.dynamic_functions({name}) if s.is_default)
    return first.start + symbol.vaddr


def write_code(pid: int, address: int, code: bytes) -> bytes:
    """Returns the original bytes."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        before = os.pread(memory.fileno(), len(code), address)
        os.pwrite(memory.fileno(), code, address)
    return before


def layout_of(pid: int) -> list[str]:
    """Of all mappings of files but ours: where, with which protection."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    kept = [line for line in lines if "/" in line and "libmemleak" not in line and "memfd" not in line]
    return [line.removesuffix(" (deleted)") for line in kept]  # another run of the tests has built its own


def contents_of(pid: int) -> dict[str, str]:
    """Of all code and read-only data (slots behind RELRO are there) of files but ours: a digest by mapping. Breakpoints
    do not count: others may trace the whole machine meanwhile, and an attached session sets none.
    """
    found = {}
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in layout_of(pid):
            span, rights, offset, _, _, path = line.split(maxsplit=5)
            low, high = (int(each, 16) for each in span.split("-"))
            if rights in ("r-xp", "r--p"):
                data = os.pread(memory.fileno(), high - low, low)
                data = _without_breakpoints(data, Path(path), int(offset, 16)) if rights == "r-xp" else data
                found[line] = hashlib.sha256(data).hexdigest()
    return found


def _without_breakpoints(code: bytes, path: Path, offset: int) -> bytes:
    """int3 gives way to the file's own byte."""
    if not path.exists():
        return code
    with path.open("rb") as file:
        own = np.frombuffer(os.pread(file.fileno(), len(code), offset).ljust(len(code), b"\0"), np.uint8)
    seen = np.frombuffer(code, np.uint8)
    return np.where(seen == _INT3, own, seen).tobytes()
