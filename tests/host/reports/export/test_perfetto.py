"""Perfetto's heap profiles, read by the public schema (the package perfetto has it): every total is ours."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.export import perfetto
from memleak_android.host.reports.export.exported import GIVEN_BACK, UNATTRIBUTED
from memleak_android.host.reports.export.perfetto import MESSAGES
from tests.support.builders.profiles import DECODE, counted_profile, empty_profile, frame, profile
from tests.support.written import written

perfetto_trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

SPACE, OBJECTS = 101_211, 29  # of profile()


def trace_of(made: Profile) -> Any:
    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(written("perfetto", made))
    return trace


def dumps(trace: Any) -> list[Any]:
    return [dump for packet in trace.packet for dump in packet.profile_packet.process_dumps]


def outstanding(trace: Any) -> tuple[int, int]:
    samples = [sample for dump in dumps(trace) for sample in dump.samples]
    return (
        sum(sample.self_allocated - sample.self_freed for sample in samples),
        sum(sample.alloc_count - sample.free_count for sample in samples),
    )


def stacks(trace: Any) -> dict[tuple[str, ...], int]:
    """Function names, outermost first, as a reader resolves them packet by packet; bytes held."""
    names: dict[str, dict[int, Any]] = defaultdict(dict)
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for packet in trace.packet:
        for table in ("function_names", "frames", "callstacks", "mappings", "build_ids", "mapping_paths"):
            for row in getattr(packet.interned_data, table):
                assert row.iid and row.iid not in names[table]
                names[table][row.iid] = row
        for frame_ in packet.interned_data.frames:
            assert frame_.mapping_id in names["mappings"]
        for dump in packet.profile_packet.process_dumps:
            for sample in dump.samples:
                frames = [names["frames"][one] for one in names["callstacks"][sample.callstack_id].frame_ids]
                functions = (names["function_names"][one.function_name_id].str.decode() for one in frames)
                found[tuple(functions)] += sample.self_allocated - sample.self_freed
    return found


def test_totals_of_a_route_that_counts() -> None:
    trace = trace_of(counted_profile())
    assert outstanding(trace) == (SPACE, OBJECTS)
    (dump,) = dumps(trace)
    assert sum(sample.self_allocated for sample in dump.samples) == 1_000_003
    assert sum(sample.alloc_count for sample in dump.samples) == 1_009
    assert (dump.pid, dump.heap_name, dump.buffer_overran) == (4711, perfetto.HEAP, True)
    assert (GIVEN_BACK,) in stacks(trace)


def test_totals_of_a_route_that_does_not_count() -> None:
    trace = trace_of(profile())
    assert outstanding(trace) == (SPACE, OBJECTS)
    (dump,) = dumps(trace)
    assert dump.heap_name == perfetto.OUTSTANDING
    assert not any(sample.self_freed or sample.free_count for sample in dump.samples)
    assert stacks(trace)[UNATTRIBUTED,] == 207


def test_stacks_begin_at_the_root_and_have_their_modules() -> None:
    trace = trace_of(profile(sites=(DECODE,)))
    (names,) = [names for names in stacks(trace) if "main" in names]
    assert names == tuple(one.function for one in reversed(DECODE.frames))
    data = trace.packet[0].interned_data
    paths = {row.iid: row.str.decode() for row in data.mapping_paths}
    ids = {row.iid: row.str.hex() for row in data.build_ids}
    modules = {
        "/".join(paths[one] for one in m.path_string_ids): ids.get(m.build_id, "") for m in data.mappings
    }
    expected = {one.module.strip("/"): one.build_id for one in DECODE.frames}
    assert expected.items() <= modules.items()
    lines = {row.line_number for row in data.frames}
    assert {one.line for one in DECODE.frames if one.line} <= lines


def test_many_sites_are_packets_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trace_of(counted_profile())
    monkeypatch.setattr(perfetto, "SITES_PER_PACKET", 2)
    trace = trace_of(counted_profile())
    packets = [packet.profile_packet for packet in trace.packet]
    assert len(packets) > 2 and [one.index for one in packets] == list(range(len(packets)))
    assert [one.continued for one in packets] == [True] * (len(packets) - 1) + [False]
    assert [packet.sequence_flags & 1 for packet in trace.packet] == [1] + [0] * (len(packets) - 1)
    assert stacks(trace) == stacks(whole) and outstanding(trace) == outstanding(whole)


def test_nothing_outstanding() -> None:
    trace = trace_of(empty_profile())
    assert outstanding(trace) == (0, 0) and len(trace.packet) == 1
    assert not trace.packet[0].profile_packet.continued


def test_hostile_names() -> None:
    frames = (
        replace(
            frame(DECODE.frames[-1].module, "\udcff\x1b"), module="/\udcff/" + "x" * 5_000, build_id="xyz"
        ),
    )
    trace = trace_of(profile(sites=(replace(DECODE, frames=frames),)))
    assert outstanding(trace)[0] == DECODE.inuse_space + 207


def test_numbers_and_types_are_those_of_the_public_schema() -> None:
    nested = {"ProcessHeapSamples", "HeapSample"}
    for name, fields in MESSAGES.items():
        parent = perfetto_trace_pb2.ProfilePacket if name in nested else perfetto_trace_pb2
        public = getattr(parent, name).DESCRIPTOR.fields_by_name
        for field, (number, type_) in fields.items():
            assert public[field].number == number, f"{name}.{field}"
            single = type_.strip("[]")
            message_type = public[field].message_type.name if public[field].message_type else None
            wanted = None if message_type else getattr(public[field], f"TYPE_{single.upper()}")
            assert message_type == single if message_type else public[field].type == wanted, f"{name}.{field}"
