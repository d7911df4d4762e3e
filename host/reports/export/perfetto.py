"""Perfetto's trace with a heap profile, as heapprofd writes it. Experimental: checked by the public schema only."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, BinaryIO

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.losses import LOSS_CAUSES
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.reports.base import ROOT, ReportOptions, bounded
from memleak_android.host.reports.export.exported import (
    GIVEN_BACK,
    display_name,
    freed_elsewhere,
    heap_sites,
    named,
)
from memleak_android.host.reports.export.protobuf_schema import message_class, messages

HEAP, OUTSTANDING = "libc.malloc", "outstanding only: what was freed is not known"
SEQUENCE_ID = 1
STATE_CLEARED, NEEDS_STATE = 1, 2  # enum SequenceFlags of trace_packet.proto
SITES_PER_PACKET = 4096
ID_DIGITS = frozenset("0123456789abcdef")


PACKAGE = "memleak_android.perfetto"

MESSAGES = messages(
    Trace="1 [TracePacket] packet",
    TracePacket="8 uint64 timestamp, 10 uint32 trusted_packet_sequence_id,"
    " 12 InternedData interned_data, 13 uint32 sequence_flags, 37 ProfilePacket profile_packet",
    InternedData="5 [InternedString] function_names, 6 [Frame] frames, 7 [Callstack] callstacks,"
    " 16 [InternedString] build_ids, 17 [InternedString] mapping_paths,"
    " 18 [InternedString] source_paths, 19 [Mapping] mappings",
    InternedString="1 uint64 iid, 2 bytes str",
    Frame="1 uint64 iid, 2 uint64 function_name_id, 3 uint64 mapping_id, 4 uint64 rel_pc,"
    " 5 uint64 source_path_iid, 6 uint32 line_number",
    Mapping="1 uint64 iid, 2 uint64 build_id, 4 uint64 start, 7 [uint64] path_string_ids",
    Callstack="1 uint64 iid, 2 [uint64] frame_ids",
    ProfilePacket="5 [ProcessHeapSamples] process_dumps, 6 bool continued, 7 uint64 index",
    ProcessHeapSamples="1 uint64 pid, 2 [HeapSample] samples, 7 bool buffer_overran,"
    " 9 uint64 timestamp, 11 string heap_name, 12 uint64 sampling_interval_bytes",
    HeapSample="1 uint64 callstack_id, 2 uint64 self_allocated, 3 uint64 self_freed,"
    " 5 uint64 alloc_count, 6 uint64 free_count",
)


@lru_cache(maxsize=1)
def trace_class() -> Any:
    """The class of the message Trace."""
    return message_class(PACKAGE, MESSAGES, "Trace")


def write(profile: Profile, stream: BinaryIO, options: ReportOptions) -> None:
    """All sites, whatever options.top says; packet by packet.

    Allocations and frees are included if the tracer counted every allocation. Else outstanding blocks count as allocated,
    and the heap is named so.
    """
    sites, freed = heap_sites(profile), freed_elsewhere(profile)
    if freed:
        totals = profile.totals  # blocks without a stack were allocated too: that is in theirs
        space = max(0, freed[0] - totals.unattributed_space)
        objects = max(0, freed[1] - totals.unattributed_objects)
        sites.append(CallSite("", 0, 0, space, objects, 0, "user", ROOT, (named(GIVEN_BACK),)))
    writer = _Writer(profile, is_counted=freed is not None)
    for first in range(0, max(len(sites), 1), SITES_PER_PACKET):
        end = first + SITES_PER_PACKET
        trace = writer.packet(sites[first:end], first // SITES_PER_PACKET, end < len(sites))
        stream.write(trace.SerializeToString(deterministic=True))


class _Writer:
    """Makes traces of one packet each; concatenated they are one trace. Interned strings stay known."""

    def __init__(self, profile: Profile, is_counted: bool) -> None:
        self._profile = profile
        self._is_counted = is_counted
        self._numbers: dict[tuple[Any, ...], int] = {}

    def packet(self, sites: Sequence[CallSite], index: int, is_continued: bool) -> Any:
        profile, trace = self._profile, trace_class()()
        packet = trace.packet.add(
            timestamp=profile.duration_ns,
            trusted_packet_sequence_id=SEQUENCE_ID,
            sequence_flags=NEEDS_STATE if index else NEEDS_STATE | STATE_CLEARED,
        )
        packet.profile_packet.index, packet.profile_packet.continued = index, is_continued
        dump = packet.profile_packet.process_dumps.add(
            pid=profile.target.pid,
            timestamp=profile.duration_ns,
            heap_name=HEAP if self._is_counted else OUTSTANDING,
            sampling_interval_bytes=profile.target.sample_bytes or 1,
            buffer_overran=any(
                cause.is_stack_buffer and name in profile.totals.lost for name, cause in LOSS_CAUSES.items()
            ),
        )
        for number, site in enumerate(sites):
            stack = index * SITES_PER_PACKET + number + 1
            frames = [self._frame(packet.interned_data, frame) for frame in reversed(site.frames)]
            packet.interned_data.callstacks.add(iid=stack, frame_ids=frames)
            dump.samples.add(callstack_id=stack, **self._counts(site))
        return trace

    def _counts(self, site: CallSite) -> dict[str, int]:
        if not self._is_counted:
            return {"self_allocated": site.inuse_space, "alloc_count": site.inuse_objects}
        space = site.inuse_space if site.alloc_space is None else site.alloc_space  # unattributed: None
        objects = site.inuse_objects if site.alloc_objects is None else site.alloc_objects
        return {
            "self_allocated": space,
            "self_freed": max(0, space - site.inuse_space),
            "alloc_count": objects,
            "free_count": max(0, objects - site.inuse_objects),
        }

    def _frame(self, data: Any, frame: Frame) -> int:
        number, is_new = self._number("frame", frame)
        if is_new:
            made = data.frames.add(iid=number, rel_pc=frame.vaddr)
            made.function_name_id = self._text(data.function_names, "function", display_name(frame))
            made.mapping_id = self._mapping(data, frame)
            if frame.file:
                made.source_path_iid = self._text(data.source_paths, "source", bounded(frame.file))
                made.line_number = min(frame.line or 0, 2**32 - 1)
        return number

    def _mapping(self, data: Any, frame: Frame) -> int:
        number, is_new = self._number("mapping", frame.module, frame.build_id)
        if is_new:
            parts = [part for part in bounded(frame.module).split("/") if part]
            paths = [self._text(data.mapping_paths, "path", part) for part in parts]
            made = data.mappings.add(iid=number, path_string_ids=paths)
            if frame.build_id and len(frame.build_id) % 2 == 0 and ID_DIGITS.issuperset(frame.build_id):
                made.build_id = self._text(data.build_ids, "build", bytes.fromhex(frame.build_id))
        return number

    def _text(self, strings: Any, kind: str, text: str | bytes) -> int:
        number, is_new = self._number(kind, text)
        if is_new:
            strings.add(iid=number, str=text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
        return number

    def _number(self, *key: Any) -> tuple[int, bool]:
        """The number of an interned object, and whether it is new."""
        known = len(self._numbers)
        number = self._numbers.setdefault(key, known + 1)
        return number, number > known
