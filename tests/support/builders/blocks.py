"""Hand-made blocks: evidence, live tables, counters, whole recordings."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from memleak_android.host.recording.file import FILE_HEADER
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import (
    EVIDENCE,
    KEY_ROW,
    LIVE_ROW,
    PYTHON_FRAME,
    STATUS,
    ArchNumber,
    Block,
    BlockKind,
    Collector,
    EvidenceFlag,
    Function,
    Lost,
    Reason,
    Rows,
    encode_block,
)

SECOND = 10**9
MAPS = "00400000-00500000 r-xp 00000000 08:01 0 /nonexistent/program\n"
X86_64_REGISTERS = 21
RIP, RSP = 16, 19  # slots of struct pt_regs


def hello(
    *, wire_version: int = 2, pid: int = 100, monotonic_ns: int = 10**9, realtime_ns: int = 10**18
) -> Block:
    payload = struct.pack(
        "<IHHIIQQ24s",
        wire_version,
        ArchNumber.X86_64,
        Collector.PRELOAD,
        4096,
        pid,
        monotonic_ns,
        realtime_ns,
        b"0.1.0",
    )
    return Block(BlockKind.HELLO, payload)


def evidence_record(
    *,
    sequence: int,
    key: int = 1,
    pc: int = 0,
    sp: int = 0x7FFF0000,
    stack: bytes = b"",
    fixups: Sequence[tuple[int, int]] = (),
    function: int = Function.MALLOC,
    size: int = 16,
    pid: int = 100,
    timestamp_ns: int = 2 * 10**9,
    flags: int = EvidenceFlag.AT_RETURN,
    registers: dict[int, int] | None = None,
    extra_padding: int = 0,
    words: dict[int, int] | None = None,
    chain: Sequence[int] | None = None,
    above: tuple[int, dict[int, int]] | None = None,
    interrupted: tuple[int, bytes] | None = None,
    python: Sequence[tuple[int, int, int]] | None = None,
) -> bytes:
    """One ml_evidence with its registers, stack and padding.

    words: what is known of the stack instead of all of it, by index in words; `stack` says how long the slice is.
    chain: return addresses by frame records; without one, and without a stack, the chain ends at once. above: how far words above the slice reach (bytes), and they by index. interrupted: address and bytes of a second stack. python: frames by address, code and offset.
    """
    chain = () if chain is None and not stack and words is None else chain
    values = np.zeros(X86_64_REGISTERS, "<u8")
    given = {RIP: pc, RSP: sp, **(registers or {})}
    for slot, value in given.items():
        values[slot] = value
    header, sent = np.zeros(1, EVIDENCE)[0], stack
    if words is not None:
        flags |= EvidenceFlag.STACK_SPARSE
        indices = np.array(list(words), "<u2").tobytes()
        sent = np.array([len(words), *words.values()], "<u8").tobytes() + indices
    more, flags = _behind_stack(chain, above, interrupted, python, flags)
    tail = values.tobytes() + sent + b"\0" * (-len(sent) % 8) + more + b"\0" * extra_padding
    fields = {
        "record_bytes": EVIDENCE.itemsize + len(tail),
        "flags": flags,
        "function": function,
        "sequence": sequence,
        "timestamp_ns": timestamp_ns,
        "key": key,
        "address": 0x5000 + sequence * 0x100,
        "size": size,
        "pid": pid,
        "tid": pid,
        "n_registers": X86_64_REGISTERS,
        "n_fixups": len(fixups),
        "stack_bytes": len(stack),
        "stack_address": sp,
        "registers_known": sum(1 << slot for slot in given),
    }
    for name, value in fields.items():
        header[name] = value
    for i, fixup in enumerate(fixups):
        header["fixups"][i] = fixup
    return bytes(header.tobytes()) + tail


def _behind_stack(
    chain: Sequence[int] | None,
    above: tuple[int, dict[int, int]] | None,
    interrupted: tuple[int, bytes] | None,
    python: Sequence[tuple[int, int, int]] | None,
    flags: int,
) -> tuple[bytes, int]:
    """The bytes, and the flags with what says that they are there."""
    sent = b""
    if chain is not None:
        sent, flags = np.array([len(chain), *chain], "<u8").tobytes(), flags | EvidenceFlag.FRAME_CHAIN
    if above is not None:
        sent, flags = sent + _above_bytes(*above), flags | EvidenceFlag.STACK_ABOVE
    if interrupted is not None:
        address, stack = interrupted
        sent += np.array([address, len(stack)], "<u8").tobytes() + stack
        flags |= EvidenceFlag.INTERRUPTED
    if python is not None:
        sent += struct.pack("<II", len(python), 1) + np.array([*python], PYTHON_FRAME).tobytes()
        flags |= EvidenceFlag.PYTHON_FRAMES
    return sent, flags


def _above_bytes(reach: int, words: dict[int, int]) -> bytes:
    sent = np.array([reach, len(words)], "<u4").tobytes() + np.array(list(words.values()), "<u8").tobytes()
    return sent + np.array([*words, *[0] * (len(words) % 2)], "<u4").tobytes()


def evidence(*records: bytes) -> Block:
    return Block(BlockKind.EVIDENCE, b"".join(records))


def live_rows(*rows: dict[str, int]) -> Rows:
    """Rows of LIVE_ROW; what is not given has a plausible value."""
    result = np.zeros(len(rows), LIVE_ROW)
    for i, row in enumerate(rows):
        sequence = row.get("sequence", i + 1)
        defaults = {
            "address": 0x5000 + sequence * 0x100,
            "size": 16,
            "timestamp_ns": 2 * 10**9,
            "sequence": sequence,
            "key": 1,
            "pid": 100,
            "tid": 100,
            "function": int(Function.MALLOC),
        }
        for name, value in {**defaults, **row}.items():
            result[name][i] = value
    return result


def key_rows(*rows: dict[str, int]) -> Rows:
    result = np.zeros(len(rows), KEY_ROW)
    for i, row in enumerate(rows):
        for name, value in {"pid": 100, "key": 1, **row}.items():
            result[name][i] = value
    return result


def snapshot(
    live: Rows, keys: Rows | None = None, *, number: int = 1, timestamp_ns: int = 5 * 10**9
) -> list[Block]:
    """A whole snapshot in one chunk each."""
    counters = key_rows() if keys is None else keys
    return [
        payloads.encode_chunk(BlockKind.KEYS, payloads.Chunk(number, timestamp_ns, True, counters)),
        payloads.encode_chunk(BlockKind.LIVE, payloads.Chunk(number, timestamp_ns, True, live)),
    ]


def status(*, lost: dict[Lost, int] | None = None, **fields: int) -> Block:
    row = np.zeros(1, STATUS)[0]
    for name, value in {"timestamp_ns": 5 * 10**9, **fields}.items():
        row[name] = value
    for cause, count in (lost or {}).items():
        row["lost"][cause] = count
    return Block(BlockKind.STATUS, row.tobytes())


def maps(text: str, *, pid: int = 100, timestamp_ns: int = 15 * 10**8) -> Block:
    return payloads.encode_maps(payloads.Maps(timestamp_ns, pid, text))


def process(event: int, *, pid: int, parent: int = 0, timestamp_ns: int) -> bytes:
    return struct.pack("<QIIIi16s", timestamp_ns, pid, parent, event, -1, b"target")


def mapping(start: int, end: int, path: str, *, pid: int = 100, timestamp_ns: int, inode: int = 0) -> bytes:
    """One ml_mapping, executable."""
    name = path.encode()
    padded = name + b"\0" * (-len(name) % 8)
    return (
        struct.pack(
            "<IIQQQQQIIII", 64 + len(padded), pid, timestamp_ns, start, end, 0, inode, 0, 0, 5, len(name)
        )
        + padded
    )


def end(reason: Reason = Reason.STOPPED, wait_status: int = -1, timestamp_ns: int = 5 * 10**9) -> Block:
    return Block(BlockKind.END, struct.pack("<IiQ", reason, wait_status, timestamp_ns))


def write_recording(path: Path, blocks: Iterable[Block]) -> Path:
    path.write_bytes(FILE_HEADER + b"".join(encode_block(block) for block in blocks))
    return path


# Its stacks are whole by frame pointers, and all that it was asked for is traced.
SESSION = '{"unwind": "fp", "coverage": {"functions": [], "programs": []}}'


def short_recording(
    path: Path,
    *blocks: Block,
    vaddrs: Mapping[int, int] | None = None,
    counts: Block | None = None,
    reason: Reason = Reason.STOPPED,
) -> Path:
    """A session from 1 s on, of a program whose stacks end at once: MAPS is mapped, without a file.

    vaddrs: by key, what its stack returns to in the program. counts: the last STATUS.
    """
    records = [evidence_record(sequence=key, key=key, pc=0x400000 + at) for key, at in (vaddrs or {}).items()]
    session = payloads.encode_text(BlockKind.SESSION, SESSION)  # one in `blocks` replaces it
    head = [hello(monotonic_ns=SECOND), session, maps(MAPS), *([evidence(*records)] if records else [])]
    return write_recording(path, [*head, *blocks, counts or status(), end(reason)])
