"""A command run under the preload agent, and everything the agent said of it."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local.bpf import plan_session
from memleak_android.host.wire.blocks import BlockKind, Rows
from memleak_android.host.wire.payloads import (
    EvidenceBatch,
    Maps,
    decode_chunk,
    decode_end,
    decode_evidence,
    decode_gap,
    decode_hooked,
    decode_maps,
    decode_processes,
    decode_status,
    decode_text,
)


@dataclass
class PreloadSession:
    """live, keys: rows of the last snapshot. status: the last STATUS."""

    live: Rows
    keys: Rows
    status: np.void
    end: np.void
    evidence: list[EvidenceBatch] = field(default_factory=list)
    maps: list[Maps] = field(default_factory=list)
    processes: list[tuple[int, int]] = field(default_factory=list)  # pid, event
    process_times_ns: list[int] = field(default_factory=list)  # of `processes`
    remarks: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    hooked: list[Rows] = field(default_factory=list)

    def sizes(self) -> Counter[int]:
        """Live blocks by size."""
        return Counter(self.live["size"].tolist())

    def evidence_keys(self) -> set[int]:
        return {int(key) for batch in self.evidence for key in batch.rows["key"]}


def find_parts() -> tuple[Path, Path]:
    try:
        return find_binary("memleakd", local_arch()), find_binary("libmemleak.so", local_arch())
    except TracerError as error:
        pytest.skip(str(error))


def run_preloaded(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None, **options: int
) -> PreloadSession:
    """options: fields of SessionOptions. Without mmap no region ledger is kept, unlike in sessions of our program."""
    agent, shim = find_parts()
    session_options = SessionOptions(command=tuple(map(str, command)), **options)  # type: ignore[arg-type]
    lines = _lines(session_options.lines(), options)
    lines += [f"env {quote(f'{name}={value}')}" for name, value in (environment or {}).items()]
    lines.append(f"shim {quote(os.fspath(shim), safe='/')}")
    session = AgentSession("preload", LocalChannel([str(agent), "preload"]), lines)
    try:
        return _collect(session)
    finally:
        session.close()


def _lines(lines: list[str], options: Mapping[str, int]) -> list[str]:
    return lines if options.get("mmap") else [line for line in lines if not line.startswith("mmap ")]


def run_by_bpf(command: Sequence[str | Path], **options: int) -> PreloadSession:
    """The same by the BPF agent."""
    session_options = SessionOptions(command=tuple(map(str, command)), **options)  # type: ignore[arg-type]
    lines = _lines([*session_options.bpf_lines(), *plan_session(session_options).lines()], options)
    session = AgentSession("bpf", LocalChannel([str(find_parts()[0]), "bpf"]), lines)
    try:
        return _collect(session)
    finally:
        session.close()


def await_process(name_and_nonce: str, start: Callable[[], object], *, stops: bool = False) -> PreloadSession:
    """A session that starts nothing: `start` does, once the agent listens. It ends with the process, or, where it
    `stops`, once `start` returns."""
    agent, _ = find_parts()
    lines = [*SessionOptions(command=()).lines(), f"await {quote(name_and_nonce)}"]
    session = AgentSession("preload", LocalChannel([str(agent), "preload"]), lines)
    try:
        return _collect(session, lambda: (start(), stops and session.stop()))
    finally:
        session.close()


def started_outside(folder: Path, session: str, *command: str | Path) -> subprocess.Popen[bytes]:
    """A program started with a copy of the shim as its LD_PRELOAD, and nothing else."""
    if not (folder / "m.so").exists():
        shutil.copyfile(find_parts()[1], folder / "m.so")
    (folder / "m.so.session").write_text(f"{session}\n")
    return subprocess.Popen(command, env={**os.environ, "LD_PRELOAD": str(folder / "m.so")})


def _collect(session: AgentSession, at_first_status: Callable[[], object] = lambda: None) -> PreloadSession:
    live, keys, last = [], [], {}
    rest = PreloadSession(np.zeros(0), np.zeros(0), np.void(b""), np.void(b""))  # filled below
    for block in session.blocks():
        if block.kind == BlockKind.STATUS and BlockKind.STATUS not in last:
            at_first_status()
        last[block.kind] = block
        if block.kind == BlockKind.LIVE:
            live.append(decode_chunk(block).rows)
        elif block.kind == BlockKind.KEYS:
            keys.append(decode_chunk(block).rows)
        elif block.kind == BlockKind.EVIDENCE:
            rest.evidence.append(decode_evidence(block.payload))
        elif block.kind == BlockKind.MAPS:
            rest.maps.append(decode_maps(block.payload))
        elif block.kind == BlockKind.PROCESS:
            rows = decode_processes(block.payload)
            rest.processes += [(int(row["pid"]), int(row["event"])) for row in rows]
            rest.process_times_ns += rows["timestamp_ns"].tolist()
        elif block.kind == BlockKind.HOOKED:
            rest.hooked.append(decode_hooked(block.payload))
        elif block.kind == BlockKind.LOG:
            rest.remarks.append(decode_text(block.payload))
        elif block.kind == BlockKind.GAP:
            rest.gaps.append(decode_gap(block.payload).text)
        assert block.kind != BlockKind.ERROR, block.payload
    rest.live, rest.keys = np.concatenate(live), np.concatenate(keys)
    rest.status = decode_status(last[BlockKind.STATUS].payload)
    rest.end = decode_end(last[BlockKind.END].payload)
    return rest
