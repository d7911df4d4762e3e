"""A session of the tracer `bcc`: the agent's side of docs/wire-protocol.md."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time
from importlib.metadata import version
from typing import Any, BinaryIO

import numpy as np

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.tracers.bcc import programs
from memleak_android.host.tracers.bcc.code_map import code_bits
from memleak_android.host.tracers.bcc.config import Configuration
from memleak_android.host.tracers.bcc.held_command import HeldCommand
from memleak_android.host.tracers.bcc.side_band import (
    MMAP2,
    SideBand,
    mappings_block,
    maps_block,
    maps_text,
    process_block,
)
from memleak_android.host.tracers.bcc.tables import Tables
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import (
    END,
    HELLO,
    WIRE_VERSION,
    ArchNumber,
    Block,
    BlockKind,
    Collector,
    ProcessEvent,
    Reason,
    Rows,
    encode_block,
)

_POLL_S, _STATUS_S = 0.02, 0.25
_CHUNK_ROWS = 1 << 17
_EVIDENCE_BYTES = 8 << 20  # of a block


class Session:
    """Accounting of one process.

    bcc: the module.
    command: the forked command, None for a running process.
    output: takes blocks.
    """

    def __init__(
        self, bcc: Any, configuration: Configuration, command: HeldCommand | None, output: BinaryIO
    ) -> None:
        self._bcc, self._configuration, self._command, self._output = bcc, configuration, command, output
        self.pid = configuration.pid or (command.pid if command else 0)
        self._evidence = bytearray()
        self._snapshots = 0
        self._exec_ns = 0
        self._code_bits = b""
        self._ended: tuple[Reason, int] | None = None
        self._due = 0.0

    def run(self, descriptor: int) -> None:
        """descriptor: of the host's lines. Raises TargetError or TracerError before the session has begun."""
        self._pidfd = _open_process(self.pid)
        with contextlib.closing(SideBand(self.pid)) as self._side_band:
            self._bpf = programs.load(self._bcc, self._configuration)
            self._tables = Tables(self._bcc, self._bpf, self.pid)
            self._bpf["ring"].open_ring_buffer(self._take_evidence)
            self._write_start()
            self._probes = programs.Probes(self._bcc, self._bpf)
            self._attach()
            if self._command:
                self._command.release()
            self._serve(descriptor)
            self._finish()

    def _attach(self) -> None:
        try:
            self._probes.attach(self._configuration.probes, self.pid)
        except TracerError:
            if select.select([self._pidfd], [], [], 0)[0]:
                raise TargetError(f"process {self.pid} ended before all probes were placed") from None
            raise

    def _write_start(self) -> None:
        hello = np.zeros(1, HELLO)
        hello["wire_version"], hello["arch"], hello["collector"] = (
            WIRE_VERSION,
            ArchNumber.X86_64,
            Collector.BPF,
        )
        hello["page_bytes"], hello["pid"] = os.sysconf("SC_PAGESIZE"), self.pid
        hello["monotonic_ns"], hello["realtime_ns"] = time.monotonic_ns(), time.time_ns()
        hello["agent_version"] = version("memleak-android").encode()[:23]
        self._write(Block(BlockKind.HELLO, hello.tobytes()))
        self._write(process_block(self.pid, ProcessEvent.START))
        if self._command is None:  # the side band reports all mappings of a command
            now, text = time.monotonic_ns(), maps_text(self.pid)
            self._write(maps_block(self.pid, now, text))
            self._update_code_map(text)

    def _serve(self, descriptor: int) -> None:
        """Runs until the target ends or the host stops the session."""
        pending = b""
        while self._ended is None:
            ready = select.select([descriptor, self._pidfd], [], [], _POLL_S)[0]
            if descriptor in ready:
                read = os.read(descriptor, 4096)
                *lines, pending = (pending + read).split(b"\n")
                for line in lines:
                    self._obey(line)
                if not read:
                    self._ended = (Reason.INPUT_CLOSED, 0)
            self._drain()
            if self._pidfd in ready and self._ended is None:
                self._ended = (Reason.TARGET_EXIT, self._exit_status())
            if time.monotonic() >= self._due:
                self._due = time.monotonic() + _STATUS_S
                self._write_status()
                if self._command is None or self._exec_ns:
                    self._update_code_map(maps_text(self.pid))

    def _obey(self, line: bytes) -> None:
        if line == b"stop":
            self._ended = (Reason.STOPPED, 0)
        elif line == b"snapshot":
            self._drain()
            self._write_snapshot()
            self._write_status()

    def _finish(self) -> None:
        self._probes.detach()
        self._drain()
        assert self._ended is not None
        reason, status = self._ended
        if reason == Reason.TARGET_EXIT:
            self._write(process_block(self.pid, ProcessEvent.EXIT, status=status))
        self._write_snapshot()
        self._write_status()
        end = np.zeros(1, END)
        end["reason"], end["status"], end["timestamp_ns"] = reason, status, time.monotonic_ns()
        self._write(Block(BlockKind.END, end.tobytes()))

    def _drain(self) -> None:
        """Writes mappings before stacks, which need them."""
        records = self._side_band.records()
        for record in records:
            if record.is_exec:
                self._exec_ns = record.time_ns
                self._write(process_block(self.pid, ProcessEvent.EXEC, record.time_ns))
        block = mappings_block(
            self.pid, [one for one in records if one.kind == MMAP2 and one.time_ns >= self._exec_ns]
        )
        if block is not None:
            self._write(block)
            self._update_code_map(maps_text(self.pid))
        self._bpf.ring_buffer_consume()
        self._write_evidence()

    def _update_code_map(self, text: str) -> None:
        """Updates the map of code that stack keys are made with."""
        bits = code_bits(text).tobytes()
        if bits != self._code_bits:
            self._code_bits = bits
            table = self._bpf["code"]
            table[0] = table.Leaf.from_buffer_copy(bits)

    def _take_evidence(self, context: object, data: int, size: int) -> int:
        """Called once for each stack, not for each call."""
        self._evidence += ctypes.string_at(data, size)
        if len(self._evidence) > _EVIDENCE_BYTES:
            self._write_evidence()
        return 0

    def _write_evidence(self) -> None:
        if self._evidence:
            self._write(Block(BlockKind.EVIDENCE, bytes(self._evidence)))
            self._evidence.clear()

    def _write_snapshot(self) -> None:
        self._snapshots += 1
        now = time.monotonic_ns()
        self._write_chunks(BlockKind.KEYS, self._tables.keys(), now)
        self._write_chunks(BlockKind.LIVE, self._tables.live(self._exec_ns), now)

    def _write_chunks(self, kind: BlockKind, rows: Rows, now: int) -> None:
        starts = range(0, len(rows), _CHUNK_ROWS) or range(1)
        for start in starts:
            part = rows[start : start + _CHUNK_ROWS]
            is_last = start + _CHUNK_ROWS >= len(rows)
            self._write(payloads.encode_chunk(kind, payloads.Chunk(self._snapshots, now, is_last, part)))

    def _write_status(self) -> None:
        status = self._tables.status(time.monotonic_ns(), time.process_time_ns(), self._side_band.lost)
        self._write(Block(BlockKind.STATUS, status))

    def _exit_status(self) -> int:
        if self._command is None:
            return -1
        return os.waitpid(self.pid, 0)[1]

    def _write(self, block: Block) -> None:
        self._output.write(encode_block(block))
        self._output.flush()


def _open_process(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise TargetError(f"process {pid} is gone", "name one that runs") from None
