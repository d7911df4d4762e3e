"""Writes perf.data files, field by field as include/uapi/linux/perf_event.h and perf.data-file-format.txt have them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

IP, TID, TIME, ADDR, READ, CALLCHAIN, ID, CPU, PERIOD = (1 << n for n in range(9))
STREAM_ID, RAW, BRANCH_STACK, REGS_USER, STACK_USER, WEIGHT = (1 << n for n in range(9, 15))
IDENTIFIER = 1 << 16
X86_64_MASK = 0xFF0FFF
SAMPLE_ID_ALL = 1 << 18
# perf's numbers of the registers in struct pt_regs order: r15 … ss (arch/x86/include/uapi/asm/perf_regs.h)
X86_64_PT_REGS = (23, 22, 21, 20, 6, 1, 19, 18, 17, 16, 0, 2, 3, 4, 5, None, 8, 10, 9, 7, 11)


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def text(content: str) -> bytes:
    raw = content.encode() + b"\0"
    return raw + bytes(-len(raw) % 8)


def record(kind: int, content: bytes, misc: int = 0) -> bytes:
    return struct.pack("<IHH", kind, misc, 8 + len(content)) + content


@dataclass(frozen=True)
class Attribute:
    sample_type: int
    ids: Sequence[int] = (1,)
    registers: int = X86_64_MASK
    read_format: int = 0
    branch_type: int = 0
    stack_bytes: int = 8192
    name: str = ""
    kind: int = 1
    config: int = 0

    def pack(self) -> bytes:
        head = struct.pack(
            "<IIQQQQQ", self.kind, 128, self.config, 1, self.sample_type, self.read_format, SAMPLE_ID_ALL
        )
        rest = struct.pack("<IIQQQQIi", 0, 0, 0, 0, self.branch_type, self.registers, self.stack_bytes, 0)
        return (head + rest).ljust(128, b"\0")


def trailer(time: int, identity: int = 1, pid: int = 7) -> bytes:
    """sample_id of TID | TIME | IDENTIFIER."""
    return struct.pack("<IIQQ", pid, pid, time, identity)


def mmap2(pid: int, start: int, length: int, offset: int, path: str, time: int, *, protection: int = 5, inode: int = 0, build_id: bytes = b"") -> bytes:  # fmt: skip
    file = struct.pack("<IIQQ", 0, 0, inode, 0)
    if build_id:
        file = struct.pack("<B3x20s", len(build_id), build_id)
    content = (
        struct.pack("<IIQQQ", pid, pid, start, length, offset) + file + struct.pack("<II", protection, 2)
    )
    return record(10, content + text(path) + trailer(time), (1 << 14 if build_id else 0) | 2)


def comm(pid: int, tid: int, name: str, time: int, *, is_exec: bool = False) -> bytes:
    return record(3, struct.pack("<II", pid, tid) + text(name) + trailer(time), 1 << 13 if is_exec else 0)


def fork(pid: int, parent: int, time: int, tid: int = 0, parent_tid: int = 0) -> bytes:
    return record(
        7, struct.pack("<IIIIQ", pid, parent, tid or pid, parent_tid or parent, time) + trailer(time)
    )


def stack_part(registers: Sequence[int], stack: bytes, filled: int | None = None, abi: int = 2) -> bytes:
    """REGS_USER and STACK_USER of a sample."""
    return words(abi, *registers, len(stack)) + stack + words(len(stack) if filled is None else filled)


SIMPLE = IDENTIFIER | IP | TID | TIME | REGS_USER | STACK_USER


def sample(pid: int, time: int, rest: bytes, *, tid: int = 0, identity: int = 1, ip: int = 0x1000) -> bytes:
    """IDENTIFIER, IP, TID, TIME, then `rest`."""
    return record(9, struct.pack("<QQIIQ", identity, ip, pid, tid or pid, time) + rest, 2)


def _string(content: str) -> bytes:
    raw = text(content)
    return struct.pack("<I", len(raw)) + raw


def _descriptions(attributes: Sequence[Attribute]) -> bytes:
    parts = [struct.pack("<II", len(attributes), 128)]
    for one in attributes:
        parts.append(one.pack() + struct.pack("<I", len(one.ids)) + _string(one.name) + words(*one.ids))
    return b"".join(parts)


def _build_id(path: str, build_id: bytes) -> bytes:
    return record(0, struct.pack("<i20s4x", -1, build_id.ljust(20, b"\0")) + text(path), 2)


def seekable(
    attributes: Sequence[Attribute],
    records: Sequence[bytes],
    *,
    machine: str = "x86_64",
    build_ids: dict[str, bytes] | None = None,
) -> bytes:
    """A file as `perf record -o` writes it."""
    ids, sections, at = b"", [], 104
    for one in attributes:
        sections.append((at, 8 * len(one.ids)))
        ids += words(*one.ids)
        at += 8 * len(one.ids)
    attrs = b"".join(one.pack() + words(*section) for one, section in zip(attributes, sections, strict=True))
    begin, data = at + len(attrs), b"".join(records)
    features = {
        2: b"".join(_build_id(*pair) for pair in (build_ids or {}).items()),
        6: _string(machine),
        12: _descriptions(attributes),
    }
    bits = sum(1 << number for number in features)
    table, contents = b"", b""
    for content in features.values():
        table += words(begin + len(data) + 16 * len(features) + len(contents), len(content))
        contents += content
    header = b"PERFILE2" + words(104, 144, at, len(attrs), begin, len(data), 0, 0, bits, 0, 0, 0)
    return header + ids + attrs + data + table + contents


def piped(attributes: Sequence[Attribute], records: Sequence[bytes], *, machine: str = "x86_64") -> bytes:
    """What `perf record -o -` writes. A record of uneven length comes first, as perf's own do."""
    metadata = [record(80, words(3) + _string("host")[:-3])]
    metadata += [record(64, one.pack() + words(*one.ids)) for one in attributes]
    metadata += [record(78, words(2, one.ids[0]) + text(one.name)) for one in attributes if one.name]
    metadata.append(record(80, words(6) + _string(machine)))
    return b"PERFILE2" + words(16) + b"".join(metadata) + b"".join(records)
