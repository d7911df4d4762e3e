"""Has `memleakd scan` search memory and decodes its output (docs/wire-protocol.md). The writer may be broken, so every length is checked."""

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import DeviceError, MemleakError, TargetError
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import FilesInPlace, LocalMachine
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.scan.local import scan_memory
from memleak_android.host.machine.scan.words import Addresses, MemoryScan, memory_scan
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import (
    EXIT_STOP,
    SCAN,
    SCANNED,
    Block,
    BlockKind,
    BlockParser,
    BrokenStream,
    Rows,
)
from memleak_android.host.wire.payloads import MalformedBlock
from memleak_android.unwind.maps import Mapping

_UNTAGGED = np.uint64(2**56 - 1)  # arm64's top byte ignore: Documentation/arch/arm64/tagged-address-abi.rst
_GROUP = 64  # words whose bits share one u64


@dataclass(frozen=True, slots=True)
class ScannedPieces:
    """One SCANNED block. address, n_words: of each piece. bits: of all words, in whole u64 for each piece."""

    address: Addresses
    n_words: NDArray[np.int64]
    n_values: NDArray[np.int64]
    bits: NDArray[np.uint8]
    word_bytes: int

    def sources(self) -> Addresses:
        """Addresses of the words whose bits are set."""
        groups = -(-self.n_words // _GROUP)
        before = np.cumsum(groups) - groups
        index = np.flatnonzero(np.unpackbits(self.bits, bitorder="little")).astype(np.uint64)
        base = self.address - (before * _GROUP * self.word_bytes).astype(np.uint64)
        return index * np.uint64(self.word_bytes) + np.repeat(base, self.n_values)


def decode_scanned(payload: bytes, word_bytes: int) -> tuple[ScannedPieces, Addresses]:
    """The pieces, and the words that may refer to memory of the process. Raises MalformedBlock."""
    rows, bits, values = [], [np.empty(0, np.uint8)], [np.empty(0, np.uint64)]
    at = 0
    while at < len(payload):
        if len(payload) - at < SCANNED.itemsize:
            raise _malformed("cut within a piece")
        row = np.frombuffer(payload, SCANNED, 1, at)[0]
        n_groups, n_own = -(-int(row["n_words"]) // _GROUP), int(row["n_values"])
        at += SCANNED.itemsize
        if len(payload) - at < 8 * (n_groups + n_own):
            raise _malformed(f"a piece of {int(row['n_words'])} words and {n_own} values is cut")
        own = np.frombuffer(payload, np.uint8, 8 * n_groups, at)
        n_set = int(np.bitwise_count(own).sum())
        if n_set != n_own:
            raise _malformed(f"{n_own} values for {n_set} bits")
        bits.append(own)
        values.append(np.frombuffer(payload, "<u8", n_own, at + 8 * n_groups))
        at += 8 * (n_groups + n_own)
        rows.append(row)
    table = np.array(rows, SCANNED)
    n_words, n_values = table["n_words"].astype(np.int64), table["n_values"].astype(np.int64)
    pieces = ScannedPieces(table["address"].copy(), n_words, n_values, np.concatenate(bits), word_bytes)
    return pieces, np.concatenate(values)


@dataclass(slots=True)
class ScanReader:
    """Collects the blocks. is_arm64: removes the tags of addresses in registers."""

    is_arm64: bool
    _head: np.void | None = None
    _mappings: list[Mapping] = field(default_factory=list)
    _registers: list[int] = field(default_factory=list)
    _pieces: list[ScannedPieces] = field(default_factory=list)
    _values: list[Addresses] = field(default_factory=list)
    _is_over: bool = False

    def add(self, block: Block) -> None:
        """Raises MalformedBlock; TargetError if the agent reports a failure."""
        match block.kind:
            case BlockKind.ERROR:
                text = payloads.decode_error(block.payload)[1]
                raise TargetError(text)
            case BlockKind.SCAN:
                self._head = _head_of(block.payload)
            case BlockKind.MAPS:
                self._mappings = parse_maps(payloads.decode_maps(block.payload).text)
            case BlockKind.STOPPED_THREADS:
                self._registers += _registers_of(block.payload)
            case BlockKind.SCANNED if self._head is not None:
                pieces, values = decode_scanned(block.payload, int(self._head["word_bytes"]))
                self._pieces.append(pieces)
                self._values.append(values)
            case BlockKind.END:
                self._is_over = True

    def scan(self, held: Rows | np.void | None, block_addresses: Addresses) -> MemoryScan:
        """held: EXIT_STOP of the thread that another agent holds. Raises TargetError if the end is missing."""
        head = self._head
        if head is None or not self._is_over:
            raise TargetError("the agent broke off while it searched the memory", "try again")
        words, n_threads, stopped_ns = self._registers, int(head["n_threads"]), int(head["stopped_ns"])
        if held is not None:
            words, n_threads = held["registers"][: held["n_registers"]].tolist(), 1
            stopped_ns = max(0, int(head["timestamp_ns"]) - int(held["timestamp_ns"]))
        registers = np.array(words, np.uint64)
        return memory_scan(
            self._mappings,
            registers & _UNTAGGED if self.is_arm64 else registers,
            (piece.sources() for piece in self._pieces),
            self._values,
            int(head["timestamp_ns"]),
            stopped_ns,
            int(head["scanned_bytes"]),
            n_threads,
            int(head["word_bytes"]),
            block_addresses=block_addresses,
        )


def _head_of(payload: bytes) -> np.void:
    if len(payload) != SCAN.itemsize:
        raise MalformedBlock(BlockKind.SCAN, f"{len(payload)} bytes")
    head: np.void = np.frombuffer(payload, SCAN)[0]
    if head["word_bytes"] not in (4, 8):
        raise MalformedBlock(BlockKind.SCAN, f"words of {int(head['word_bytes'])} bytes")
    return head


def _registers_of(payload: bytes) -> list[int]:
    if len(payload) % EXIT_STOP.itemsize:
        raise MalformedBlock(BlockKind.STOPPED_THREADS, f"{len(payload)} bytes")
    rows = np.frombuffer(payload, EXIT_STOP)
    known = np.arange(rows["registers"].shape[1]) < rows["n_registers"][:, None]
    words: list[int] = rows["registers"][known].tolist()
    return words


def _malformed(reason: str) -> MalformedBlock:
    return MalformedBlock(BlockKind.SCANNED, reason)


_POLL_S = 0.1
_SILENCE_S = 60.0  # the agent writes nothing during the stop itself
_CLOSE_S = 2.0


def scan_by_agent(
    agent: ReadingAgent, pid: int, block_addresses: Addresses, held: Rows | np.void | None = None
) -> MemoryScan:
    """As scan_memory() of local.py. Raises TargetError, DeviceError."""
    reader, parser = ScanReader(agent.target.arch == "arm64"), BlockParser()
    words = ["scan", str(pid)]
    if held is not None:  # its last thread: the first may be gone, and its /proc/PID/maps is empty then
        words = ["scan", str(int(held["tid"])), f"{int(held['stack_pointer']):x}"]
    channel = agent.open(*words)
    last_output = time.monotonic()
    try:
        while (piece := channel.exchange(bytearray(), _POLL_S)) is not None:
            for block in parser.feed(piece):
                reader.add(block)
            last_output = time.monotonic() if piece else last_output
            if time.monotonic() - last_output > _SILENCE_S:
                raise DeviceError(
                    f"{agent.target.name} was silent for {_SILENCE_S:g} s during the memory scan", "try again"
                )
        return reader.scan(held, block_addresses)
    except BrokenStream as error:
        raise TargetError(
            f"the agent sent a malformed block ({error.reason})", channel.last_words()
        ) from None
    finally:
        channel.close(_CLOSE_S, _CLOSE_S)


def scan_local_memory(pid: int, block_addresses: Addresses, held: Rows | np.void | None = None) -> MemoryScan:
    """As scan_memory(), with the same errors.

    Python scans if the agent may not (Yama's ptrace_scope 1: the target is our descendant, not the agent's) or lacks memory.
    """
    machine = LocalMachine()
    try:
        files = FilesInPlace({"memleakd": find_binary("memleakd", machine.arch)})
        return scan_by_agent(ReadingAgent(machine, lambda user: files), pid, block_addresses, held)
    except (MemleakError, OSError):
        return scan_memory(pid, block_addresses, held)
