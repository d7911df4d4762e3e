"""From blocks to a Profile, on hand-made recordings whose stacks end at once: mappings without files."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.analysis.pipeline import View, _that_counts
from memleak_android.host.heap.survivors import find_survivors
from memleak_android.host.profile.growth import Growth, Trend, UnownedGrowth, UnownedPart
from memleak_android.host.profile.profile import Measurement, Profile
from memleak_android.host.recording.file import Recording
from memleak_android.host.recording.write import STACK_KINDS, recording_blocks
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.stacks.stack_unwinder import StackUnwinder
from memleak_android.host.wire.blocks import Block, BlockKind, Function, KeyFlag, Lost, ProcessEvent, Reason
from memleak_android.host.wire.payloads import Chunk, encode_chunk, encode_text
from tests.support.builders.analysed import profile_of, read
from tests.support.builders.blocks import (
    MAPS,
    SESSION,
    end,
    evidence,
    evidence_record,
    hello,
    key_rows,
    live_rows,
    mapping,
    maps,
    process,
    short_recording,
    snapshot,
    status,
    write_recording,
)
from tests.support.builders.profiles import empty_profile

ONE = evidence(evidence_record(sequence=1, key=7, pc=0x401000))  # of the stack that most blocks here have


def blocks_of(path: Path) -> list[Block]:
    with closing(Recording(path)) as recording:
        return [block for _, block in recording.blocks()]


@pytest.fixture
def recorded(tmp_path: Path) -> object:
    """Writes blocks between HELLO, MAPS and STATUS, END, and makes their Profile."""

    def make(*blocks: Block, view: View | None = None, counts: Block | None = None) -> Profile:
        last = counts or status(alloc_objects=9, alloc_bytes=99)
        return profile_of(short_recording(tmp_path / "a.memleak", *blocks, counts=last), view)

    return make


def shape(profile: Profile) -> list[tuple[int, int, bool, list[int]]]:
    """Bytes, blocks, approximate, vaddrs of the frames behind the allocation function."""
    return [
        (site.inuse_space, site.inuse_objects, site.approximate, [frame.vaddr for frame in site.frames[1:]])
        for site in profile.sites
    ]


def test_blocks_of_one_key_share_the_stack_of_its_evidence(recorded) -> None:
    profile = recorded(
        evidence(evidence_record(sequence=1, key=7, pc=0x401000, function=Function.CALLOC)),
        *snapshot(
            live_rows({"sequence": 1, "key": 7}, {"sequence": 2, "key": 7, "size": 100}),
            key_rows({"key": 7, "alloc_objects": 50, "alloc_bytes": 5000}),
        ),
    )
    assert shape(profile) == [(116, 2, False, [0x1000])]
    (site,) = profile.sites
    assert (site.alloc_objects, site.alloc_space) == (50, 5000)
    assert site.frames[0].function == "calloc"
    assert site.frames[1].module == "/nonexistent/program"
    assert site.oldest_ns == 3 * 10**9
    assert profile.measurement == Measurement.COMPLETE


def test_keys_of_one_stack_are_one_site(recorded) -> None:
    profile = recorded(
        evidence(
            evidence_record(sequence=1, key=7, pc=0x401000),
            evidence_record(sequence=2, key=8, pc=0x401000),
        ),
        *snapshot(
            live_rows({"sequence": 1, "key": 7}, {"sequence": 2, "key": 8}),
            key_rows(
                {"key": 7, "alloc_objects": 5, "alloc_bytes": 50},
                {"key": 8, "alloc_objects": 6, "alloc_bytes": 60},
            ),
        ),
    )
    assert shape(profile) == [(32, 2, False, [0x1000])]
    assert profile.sites[0].alloc_objects == 11


def test_two_stacks_under_one_key_are_separated_or_approximate(recorded) -> None:
    profile = recorded(
        evidence(
            evidence_record(sequence=1, key=7, pc=0x401000),
            evidence_record(sequence=5, key=7, pc=0x402000),
        ),
        *snapshot(
            live_rows(*({"sequence": s, "key": 7, "size": 10 * s} for s in (1, 3, 5))),
            key_rows({"key": 7, "alloc_objects": 50, "alloc_bytes": 5000}),
        ),
    )
    assert shape(profile) == [(50, 1, False, [0x2000]), (40, 2, True, [0x1000])]
    assert [site.alloc_objects for site in profile.sites] == [None, None]


def test_a_key_of_part_of_the_stack_is_approximate(recorded) -> None:
    live = live_rows({"sequence": 1, "key": 7}, {"sequence": 2, "key": 7})
    counters = key_rows({"key": 7, "alloc_objects": 9, "flags": int(KeyFlag.PARTIAL)})
    profile = recorded(ONE, *snapshot(live, counters))
    assert shape(profile) == [(32, 2, True, [0x1000])]
    assert profile.sites[0].alloc_objects == 9


def test_unattributed_blocks_are_counted_and_named_missing(recorded) -> None:
    live = live_rows({"sequence": 1, "key": 7}, {"sequence": 2, "key": 8, "size": 5})
    profile = recorded(ONE, *snapshot(live))
    assert (profile.totals.inuse_space, profile.totals.inuse_objects) == (21, 2)
    assert (profile.totals.unattributed_space, profile.totals.unattributed_objects) == (5, 1)
    assert profile.measurement == Measurement.INCOMPLETE


def test_regions_are_sites_of_their_own_and_not_in_the_heaps_totals(recorded) -> None:
    blocks = (
        evidence(
            evidence_record(sequence=1, key=7, pc=0x401000),
            evidence_record(sequence=2, key=8, pc=0x401000, function=Function.MMAP),
        ),
        *snapshot(
            live_rows(
                {"sequence": 1, "key": 7}, {"sequence": 2, "key": 8, "size": 4096, "function": Function.MMAP}
            )
        ),
    )
    assert [site.kind for site in recorded(*blocks).sites] == ["user"], "what does not grow is not listed"
    profile = recorded(
        encode_text(BlockKind.SESSION, SESSION.replace("{", '{"options": {"mmap": true}, ', 1)), *blocks
    )
    assert [(site.kind, site.inuse_space, site.frames[0].function) for site in profile.sites] == [
        ("mmap", 4096, "mmap"),
        ("user", 16, "malloc"),
    ]
    assert profile.totals.inuse_space == 16
    assert profile.measurement == Measurement.COMPLETE


def test_sampled_blocks_are_estimates_with_their_error(recorded) -> None:
    live = live_rows({"sequence": 1, "key": 7, "size": 100, "sample_bytes": 4096})
    profile = recorded(ONE, *snapshot(live))
    p = 1 - np.exp(-100 / 4096)
    (site,) = profile.sites
    assert site.inuse_space == round(100 / p) == profile.totals.inuse_space
    assert site.inuse_objects == round(1 / p) == profile.totals.inuse_objects
    assert site.stderr_space == round(float(np.sqrt(100**2 * (1 - p) / p**2)))


def test_child_process_holds_what_its_parent_allocated(recorded) -> None:
    profile = recorded(
        Block(BlockKind.PROCESS, process(ProcessEvent.FORK, pid=200, parent=100, timestamp_ns=3 * 10**9)),
        evidence(
            evidence_record(sequence=1, key=7, pc=0x401000),
            evidence_record(sequence=9, key=7, pc=0x402000, pid=200, timestamp_ns=4 * 10**9),
        ),
        *snapshot(
            live_rows(
                {"sequence": 3, "key": 7}, {"sequence": 3, "key": 6, "pid": 200}, {"sequence": 9, "pid": 200}
            )
        ),
    )
    assert shape(profile) == [(16, 1, False, [0x1000]), (16, 1, False, [0x2000])]
    assert profile.totals.unattributed_objects == 1


def test_block_of_a_key_is_named_in_the_library_of_its_own_time(recorded) -> None:
    """One library closed, another mapped at its address: equal addresses, so one key; evidence came only once."""
    profile = recorded(
        Block(BlockKind.MAPPINGS, mapping(0x400000, 0x500000, "/nonexistent/other", timestamp_ns=3 * 10**9)),
        ONE,
        *snapshot(
            live_rows(
                {"sequence": 2, "key": 7, "timestamp_ns": 25 * 10**8, "size": 10},
                {"sequence": 3, "key": 7, "timestamp_ns": 35 * 10**8, "size": 20},
                {"sequence": 4, "key": 7, "timestamp_ns": 36 * 10**8, "size": 30},
            ),
            key_rows({"key": 7, "alloc_objects": 9}),
        ),
    )
    found = [(site.frames[1].module, site.inuse_space, site.approximate) for site in profile.sites]
    assert found == [("/nonexistent/other", 50, False), ("/nonexistent/program", 10, False)]
    assert [site.alloc_objects for site in profile.sites] == [None, None]


def test_text_of_maps_that_did_not_change_is_kept_once(tmp_path: Path) -> None:
    blocks = [hello(), *(maps(MAPS, timestamp_ns=10**9 + n) for n in range(5)), maps(MAPS, pid=200)]
    capture, _ = read(write_recording(tmp_path / "a.memleak", blocks))
    assert len(capture.maps) == 6
    assert len({id(one.text) for one in capture.maps}) == 1


def test_only_the_last_whole_snapshot_counts(recorded, tmp_path: Path) -> None:
    cut = encode_chunk(BlockKind.LIVE, Chunk(3, 7 * 10**9, False, live_rows({}, {}, {})))
    profile = recorded(
        ONE,
        *snapshot(live_rows({"key": 7}), number=1),
        *snapshot(live_rows({"key": 7}, {"key": 7}), number=2, timestamp_ns=6 * 10**9),
        cut,
    )
    assert profile.totals.inuse_objects == 2
    assert profile.duration_ns == 5 * 10**9


def test_snapshot_in_many_chunks(recorded) -> None:
    rows = live_rows(*({"sequence": s, "key": 7} for s in range(1, 8)))
    chunks = [
        encode_chunk(BlockKind.LIVE, Chunk(1, 5 * 10**9, at == 6, rows[at : at + 2])) for at in range(0, 8, 2)
    ]
    keys = encode_chunk(BlockKind.KEYS, Chunk(1, 5 * 10**9, True, key_rows()))
    profile = recorded(ONE, keys, *chunks)
    assert shape(profile) == [(112, 7, False, [0x1000])]


def test_partial_first_snapshot_is_shown_as_such(tmp_path: Path) -> None:
    live = encode_chunk(BlockKind.LIVE, Chunk(1, 5 * 10**9, False, live_rows({"sequence": 1, "key": 7})))
    blocks = [hello(), maps(MAPS), ONE, live]
    profile = profile_of(write_recording(tmp_path / "a.memleak", blocks))
    assert shape(profile) == [(16, 1, False, [0x1000])]
    assert profile.measurement == Measurement.INCOMPLETE
    held = "what is held is that of the last snapshot, 0.0 s before its last sign of life"
    assert {
        f"the session did not end in order: {held}",
        "the only snapshot of the live table is cut: more is held than shown",
    } < set(profile.notes)


def test_finished_recording_gives_the_same_profile(tmp_path: Path) -> None:
    blocks = [
        hello(),
        encode_text(BlockKind.SESSION, '{"tracer": "bpf", "command": "x", "missing": ["the moon"]}'),
        Block(BlockKind.PROCESS, bytes(8)),
        maps(MAPS),
        evidence(
            evidence_record(sequence=1, key=7, pc=0x401000, stack=bytes(512)),
            evidence_record(sequence=5, key=7, pc=0x402000),
        ),
        *snapshot(live_rows({"sequence": 1, "key": 7}, {"sequence": 4, "key": 7}, {"sequence": 9, "key": 9})),
        status(alloc_objects=1000, alloc_bytes=99, lost={Lost.RING_FULL: 3}),
        end(Reason.TARGET_EXIT, 256),
    ]
    raw = write_recording(tmp_path / "raw.memleak", blocks)
    capture, recording = read(raw)
    survivors = find_survivors(capture, StackUnwinder(recording.read_block, ModuleFiles(LocalFiles(False))))
    finished = write_recording(tmp_path / "finished.memleak", recording_blocks(capture, survivors))
    assert profile_of(finished) == profile_of(raw)
    assert BlockKind.EVIDENCE not in {block.kind for block in blocks_of(finished)}
    kept = write_recording(
        tmp_path / "kept.memleak",
        recording_blocks(capture, survivors, (b for b in blocks_of(raw) if b.kind in STACK_KINDS)),
    )
    recording.close()
    assert profile_of(kept) == profile_of(raw)
    assert BlockKind.EVIDENCE in {block.kind for block in blocks_of(kept)}


def test_malformed_blocks_are_skipped_and_reported(recorded) -> None:
    profile = recorded(
        Block(BlockKind.EVIDENCE, bytes(8)),
        Block(BlockKind.SESSION, b"[1, 2]  "),
        Block(77, b"whatever"),
        ONE,
        *snapshot(live_rows({"sequence": 1, "key": 7})),
    )
    assert shape(profile) == [(16, 1, False, [0x1000])]
    assert profile.measurement == Measurement.INCOMPLETE
    note = "2 blocks could not be used (malformed EVIDENCE block: record of 0 bytes at byte 0 of 8)"
    assert profile.notes[0] == note


def test_address_without_mapping_ends_the_stack(recorded) -> None:
    stray = evidence(evidence_record(sequence=1, key=7, pc=0x900000))
    cfi = encode_text(BlockKind.SESSION, '{"unwind": "cfi"}')
    profile = recorded(cfi, stray, *snapshot(live_rows({"sequence": 1, "key": 7})))
    (site,) = profile.sites
    assert (site.end, site.frames[1].module, site.frames[1].address) == ("NO_MAPPING", "", 0x900000)


@pytest.mark.parametrize(("kept", "is_named"), [(9, False), (11, True)])
def test_what_an_allocator_keeps_beside_growing_blocks(kept: float, is_named: bool) -> None:
    """Size classes and fragments take some; more may be calls that were not seen."""
    heap = Growth(Trend.GROWS, 100.0, 99.0, 101.0, 0, 1 << 30)
    beyond = UnownedGrowth(UnownedPart.ALLOCATOR, kept, kept, kept, 0, 1 << 26)
    assert len(_that_counts([beyond], 0.0, empty_profile().totals, True, heap)) == is_named
