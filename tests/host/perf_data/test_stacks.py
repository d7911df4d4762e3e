"""perf.data files written field by field: what is read out of them, whatever their form."""

import dataclasses
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data.stacks import SampleReader
from memleak_android.unwind.trace import SampleBatch
from tests.support.builders import perf_data_writer as perf
from tests.support.builders.perf_data_writer import Attribute, sample, stack_part, words

X86 = tuple(range(0x100, 0x100 + perf.X86_64_MASK.bit_count()))
STACK = bytes(range(64))
SIMPLE = Attribute(perf.SIMPLE)


def read(tmp_path: Path, content: bytes) -> SampleReader:
    path = tmp_path / "perf.data"
    path.write_bytes(content)
    return SampleReader(path)


def batches(reader: SampleReader) -> list[SampleBatch]:
    return [group.batch for chunk in reader.chunks() for group in chunk.groups if group.batch is not None]


def slice_of(batch: SampleBatch, i: int) -> bytes:
    begin = int(batch.stack_offset[i])
    return batch.stack_bytes[begin : begin + int(batch.stack_length[i])].tobytes()


def at(time: int, pid: int = 7) -> bytes:
    return sample(pid, time, stack_part(X86, STACK))


def code(
    start: int, path: str, time: int, *, pid: int = 7, pages: int = 1, offset: int = 0, protection: int = 5
) -> bytes:
    return perf.mmap2(pid, start, pages * 0x1000, offset, path, time, protection=protection)


def read_records(tmp_path: Path, *records: bytes) -> SampleReader:
    return read(tmp_path, perf.seekable([SIMPLE], records))


def everything(extra: int, branch_type: int, between: bytes) -> tuple[Attribute, bytes]:
    """A sample with the fields of `extra`, whose bytes are `between`, before its registers and stack."""
    head = perf.IDENTIFIER | perf.IP | perf.TID | perf.TIME
    attribute = Attribute(
        head | extra | perf.REGS_USER | perf.STACK_USER, branch_type=branch_type, read_format=0b11111
    )
    return attribute, sample(7, 5, between + stack_part(X86, STACK))


CHAIN = words(3, (1 << 64) - 128, 0xFFFF_FFFF_8000_0000, (1 << 64) - 512)
BETWEEN = {
    "nothing": (0, 0, b""),
    "fixed fields": (perf.ADDR | perf.ID | perf.STREAM_ID | perf.CPU | perf.PERIOD, 0, words(1, 1, 1, 3, 99)),
    "group read": (perf.READ, 0, words(2, 10, 20, 1, 2, 3, 4, 5, 6)),
    "callchain": (perf.CALLCHAIN, 0, CHAIN),
    "raw": (perf.RAW, 0, struct.pack("<I", 12) + bytes(12)),
    "branches": (perf.BRANCH_STACK, 0, words(2) + bytes(48)),
    "branches, index": (perf.BRANCH_STACK, 1 << 17, words(1, 0) + bytes(24)),
    "branches, counters": (perf.BRANCH_STACK, 1 << 19, words(2) + bytes(64)),
    "all": (
        perf.READ | perf.CALLCHAIN | perf.RAW,
        0,
        words(1, 1, 1, 4, 5, 6) + CHAIN + words(0x0102_0304_0000_0004),
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_registers_and_stack_are_found_behind(tmp_path: Path, name: str) -> None:
    attribute, one = everything(*BETWEEN[name])
    (batch,) = batches(read(tmp_path, perf.seekable([attribute], [one, one])))
    assert len(batch) == 2
    assert slice_of(batch, 1) == STACK
    found = dict(zip((r.name for r in batch.arch.registers), batch.registers[1].tolist(), strict=True))
    assert (found["rax"], found["rsp"], found["rip"], found["r15"]) == (0x100, 0x107, 0x108, X86[-1])
    assert batch.stack_address[1] == 0x107
    assert not batch.known[1, batch.arch.slot("orig_rax")]


def test_only_the_filled_part_of_a_slice_counts(tmp_path: Path) -> None:
    one = sample(7, 5, stack_part(X86, STACK, filled=24))
    (batch,) = batches(read(tmp_path, perf.seekable([SIMPLE], [one])))
    assert slice_of(batch, 0) == STACK[:24]


@pytest.mark.parametrize(
    ("machine", "abi", "mask", "arch", "pc", "sp"),
    [
        ("x86_64", 1, 0x0FFF, "x86", 8, 7),
        ("aarch64", 2, (1 << 33) - 1, "arm64", 32, 31),
        ("aarch64", 1, (1 << 33) - 1, "arm32", 15, 13),
        ("armv7l", 1, 0xFFFF, "arm32", 15, 13),
        ("", 2, (1 << 33) - 1, "arm64", 32, 31),
        ("", 2, perf.X86_64_MASK, "x86_64", 8, 7),
    ],
)
def test_registers_of_other_machines(
    tmp_path: Path, machine: str, abi: int, mask: int, arch: str, pc: int, sp: int
) -> None:
    registers = range(0x100, 0x100 + mask.bit_count())
    one = sample(7, 5, stack_part(registers, STACK, abi=abi))
    content = perf.seekable([dataclasses.replace(SIMPLE, registers=mask)], [one], machine=machine)
    (batch,) = batches(read(tmp_path, content))
    assert batch.arch.name == arch
    assert batch.registers[0, batch.arch.pc] == 0x100 + pc
    assert batch.registers[0, batch.arch.sp] == 0x100 + sp


def test_a_sample_of_a_kernel_thread_has_no_batch(tmp_path: Path) -> None:
    reader = read(tmp_path, perf.seekable([SIMPLE], [sample(7, 5, words(0, 0))]))
    assert batches(reader) == [] and len(reader.order) == 1


@pytest.mark.parametrize("write", [perf.seekable, perf.piped], ids=["seekable", "pipe"])
def test_several_events_are_separated(tmp_path: Path, write: Callable[..., bytes]) -> None:
    plain = Attribute(perf.IDENTIFIER | perf.IP | perf.TID | perf.TIME, ids=(8, 9), name="plain")
    stacks = dataclasses.replace(SIMPLE, ids=(3,), name="stacks")
    records = [sample(7, 5, b"", identity=9), sample(7, 6, stack_part(X86, STACK), identity=3)]
    reader = read(tmp_path, write([plain, stacks], records))
    assert [reader.recording.events[i].name for i in reader.order.event.tolist()] == ["plain", "stacks"]
    (batch,) = batches(reader)
    assert slice_of(batch, 0) == STACK


def test_samples_that_do_not_say_their_event_are_refused(tmp_path: Path) -> None:
    one = Attribute(perf.IP | perf.TID | perf.TIME)
    with pytest.raises(RecordingError, match="no event id"):
        read(tmp_path, perf.seekable([one, one], [sample(7, 5, b"")]))


@pytest.mark.parametrize("kind", [81, 83])
def test_packed_records_are_unpacked(tmp_path: Path, kind: int) -> None:
    """A record may go on in the next packed one; packed ones of the first kind have any length."""
    zstandard = pytest.importorskip("zstandard")
    plain = b"".join(at(time) for time in range(40))
    stream = zstandard.ZstdCompressor().compressobj()
    packed = []
    for begin in range(0, len(plain), 1000):
        part = stream.compress(plain[begin : begin + 1000]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if kind == 83:
            part = words(len(part)) + part + bytes(-len(part) % 8)
        packed.append(perf.record(kind, part))
    assert kind == 83 or any(len(one) % 8 for one in packed)
    reader = read_records(tmp_path, perf.comm(7, 7, "before", 0), *packed, at(99))
    assert reader.recording.cut == 0
    assert reader.order.time_ns.tolist() == [*range(40), 99]
    assert all(slice_of(batch, i) == STACK for batch in batches(reader) for i in range(len(batch)))
    assert reader.processes.name_at(7, int(reader.order.rank[0])) == "before"


def test_a_trace_behind_a_record_is_passed_over(tmp_path: Path) -> None:
    aux = perf.record(71, words(24, 0, 0, 0) + words(0)) + b"\x09" * 24
    reader = read_records(tmp_path, aux, at(5))
    assert len(reader.order) == 1 and reader.recording.cut == 0


def spaces(reader: SampleReader) -> list[int]:
    """Of each sample, in order of time."""
    return reader.processes.spaces_at(reader.order.pid, reader.order.rank).tolist()


def path_at(reader: SampleReader, sample_number: int, address: int = 0x1000) -> str:
    mapping = reader.processes.spaces[spaces(reader)[sample_number]].find(address)
    return mapping.path if mapping is not None else ""


def test_records_are_put_in_order_of_time(tmp_path: Path) -> None:
    reader = read_records(tmp_path, at(30), code(0x1000, "/b", 20), at(10), code(0x1000, "/a", 5))
    assert reader.order.time_ns.tolist() == [10, 30]
    assert [path_at(reader, i) for i in (0, 1)] == ["/a", "/b"]


@pytest.mark.parametrize(
    ("step", "protection"), [(0x1000, 5), (0, 3)], ids=["over nothing", "data over data"]
)
def test_a_mapping_that_replaces_no_code_opens_no_space(tmp_path: Path, step: int, protection: int) -> None:
    files = [code(0x1000 + step * n, f"/{n}", 10 * n + 10, protection=protection) for n in range(8)]
    reader = read_records(tmp_path, *files, *(at(10 * n + 15) for n in range(8)))
    assert len(set(spaces(reader))) == 1
    assert path_at(reader, 0, 0x1000 + 7 * step) == "/7"


def test_code_over_code_splits_it(tmp_path: Path) -> None:
    over = code(0x2000, "/b", 3, offset=0x5000)
    reader = read_records(tmp_path, code(0x1000, "/a", 1, pages=3), at(2), over, at(4))
    assert [path_at(reader, 0, a) for a in (0x1000, 0x2000, 0x3000)] == ["/a", "/a", "/a"]
    assert [path_at(reader, 1, a) for a in (0x1000, 0x2000, 0x3000)] == ["/a", "/b", "/a"]
    behind = reader.processes.spaces[spaces(reader)[1]].find(0x3000)
    assert behind is not None and behind.file_offset == 0x2000


def test_exec_empties_and_fork_copies(tmp_path: Path) -> None:
    before = [code(0x1000, "/a", 1), perf.fork(8, 7, 2), at(3, 8), code(0x1000, "/later", 4), at(5, 8)]
    emptied = [perf.comm(8, 8, "new", 6, is_exec=True), at(7, 8), code(0x1000, "/c", 8, pid=8)]
    renamed = [perf.comm(8, 8, "renamed", 9), code(0x1000, "/d", 10, pid=8), at(11, 8)]
    reader = read_records(tmp_path, *before, *emptied, *renamed)
    assert [path_at(reader, i) for i in range(4)] == ["/a", "/a", "/c", "/d"]
    empty = read_records(tmp_path, code(0x1000, "/a", 1), perf.comm(7, 7, "x", 2, is_exec=True), at(3))
    assert path_at(empty, 0) == ""


def test_a_thread_has_its_makers_name_until_it_takes_its_own(tmp_path: Path) -> None:
    started = [perf.comm(7, 7, "main", 1), perf.fork(7, 7, 2, tid=9, parent_tid=7), at(3)]
    reader = read_records(tmp_path, *started, perf.comm(7, 9, "pool", 4), at(5))
    assert [reader.processes.name_at(9, rank) for rank in reader.order.rank.tolist()] == ["main", "pool"]
    assert reader.processes.name_at(1234, 0) == ":1234"


def good_file() -> bytes:
    records = [perf.comm(7, 7, "a", 0), perf.mmap2(7, 0x1000, 0x1000, 0, "/a", 1)]
    for n in range(12):
        attribute, one = everything(*BETWEEN["all"])
        records += [one, perf.mmap2(7, 0x1000 * n, 0x1000, 0, f"/{n}", n)]
    return perf.seekable([attribute], records)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "empty"),
        (b"PERFILE2", "not a perf.data"),
        (b"#!/bin/sh\n" * 20, "not a perf.data"),
        (b"2ELIFREP" + bytes(200), "big-endian"),
        (b"PERFILE2" + words(104), "header is cut"),
        (b"PERFILE2" + words(16), "has no event"),
        (b"PERFILE2" + words(104, 144, 1 << 60, 1 << 60, 104, 0, 0, 0, 0, 0, 0, 0), "outside the file"),
        (b"PERFILE2" + words(104, 144, 104, 0, 107, 0, 0, 0, 0, 0, 0, 0), "begin at 0x6b"),
    ],
)
def test_files_that_are_not_recordings_give_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    with pytest.raises(RecordingError, match=line) as error:
        read(tmp_path, content)
    assert "\n" not in str(error.value) and error.value.hint


def test_a_cut_recording_gives_what_it_holds(tmp_path: Path) -> None:
    content = perf.seekable([SIMPLE], [at(time) for time in range(5)])
    begin, size = struct.unpack_from("<QQ", content, 40)
    reader = read(tmp_path, content[: begin + size - 20])
    assert len(reader.order) == 4 and reader.recording.cut > 0


def test_a_killed_recorder_left_no_size(tmp_path: Path) -> None:
    content = bytearray(perf.seekable([SIMPLE], [at(time) for time in range(5)]))
    begin, size = struct.unpack_from("<QQ", content, 40)
    content[48:56] = words(0)
    reader = read(tmp_path, bytes(content[: begin + size]))
    assert len(reader.order) == 5


@pytest.mark.parametrize("seed", range(4))
def test_broken_bytes_are_survived(tmp_path: Path, seed: int) -> None:
    """Bytes are replaced at random, those of lengths among them: an error of ours, or samples within the file."""
    chance, good = random.Random(seed), good_file()
    for _ in range(60):
        broken = bytearray(good)
        for _ in range(chance.randrange(1, 12)):
            at = chance.randrange(len(broken))
            broken[at : at + 1] = bytes(
                [chance.choice((0, 1, 7, 8, 0x7F, 0x80, 0xFF, chance.randrange(256)))]
            )
        if chance.random() < 0.3:
            del broken[chance.randrange(len(broken)) :]
        try:
            reader = read(tmp_path, bytes(broken))
            for batch in batches(reader):
                assert np.all(batch.stack_offset + batch.stack_length <= len(batch.stack_bytes))
        except RecordingError:
            continue


def test_a_packed_bomb_is_refused(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(bytes(200 << 20))
    with pytest.raises(RecordingError, match="unpacks to more than"):
        read(tmp_path, perf.seekable([SIMPLE], [perf.record(81, packed)]))


def test_forks_of_a_large_process_cost_a_bounded_amount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each child with mappings of its own needs a copy; those that only run need none."""
    monkeypatch.setattr("memleak_android.host.perf_data.processes._COPIED_MAX", 10_000)
    large = [code(0x2000 * n, "/x", n) for n in range(500)]
    plain = [
        one for n in range(40) for one in (perf.fork(100 + n, 7, 900 + n), sample(100 + n, 900 + n, b""))
    ]
    assert len(set(spaces(read_records(tmp_path, *large, *plain)))) == 1
    mapping = [code(0x1000, "/y", 2000 + n, pid=100 + n) for n in range(40)]
    with pytest.raises(RecordingError, match="too often"):
        read_records(tmp_path, *large, *plain, *mapping)


def test_a_process_cannot_have_any_number_of_mappings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memleak_android.host.perf_data.processes._MAPPINGS_MAX", 10)
    with pytest.raises(RecordingError, match="more than 10 mappings"):
        read_records(tmp_path, *(code(0x2000 * n, "/x", n) for n in range(11)))


def test_an_image_that_no_sample_saw_is_not_kept(tmp_path: Path) -> None:
    reader = read_records(tmp_path, *(code(0x1000, f"/{n}", n) for n in range(500)), at(1000))
    spaces(reader)
    assert len(reader.processes.spaces) == 2
    assert path_at(reader, 0) == "/499"
