"""All records of a recording in order of time: each sample's event, thread and time, and the mappings at that time."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.errors import RecordingError
from memleak_android.host.perf_data import records
from memleak_android.host.perf_data.container import PerfData
from memleak_android.host.perf_data.event import Event, SampleType
from memleak_android.host.perf_data.processes import Processes
from memleak_android.host.perf_data.records import Area

_PROCESS_RECORDS = (
    records.MMAP,
    records.MMAP2,
    records.COMM,
    records.FORK,
    records.LOST,
    records.LOST_SAMPLES,
)


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """n samples in order of time.

    area, record: indices of the sample's record.
    rank: index among all records in order of time.
    event: index in PerfData.events.
    time_ns: 0 if times were not recorded.
    """

    area: NDArray[np.int32]
    record: NDArray[np.int64]
    rank: NDArray[np.int64]
    event: NDArray[np.int32]
    pid: NDArray[np.uint32]
    tid: NDArray[np.uint32]
    time_ns: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.rank)

    def part(self, begin: int, end: int) -> SampleOrder:
        return SampleOrder(*(getattr(self, field.name)[begin:end] for field in fields(self)))


def put_in_order(recording: PerfData) -> tuple[SampleOrder, Processes]:
    """Sorts the samples by time and builds the processes. Raises RecordingError if a sample's event is unknown."""
    area = np.repeat(
        np.arange(len(recording.areas), dtype=np.int32), [len(a.offsets) for a in recording.areas]
    )
    record = np.concatenate([np.arange(len(a.offsets)) for a in recording.areas])
    found = [_heads(part, recording.events) for area_ in recording.areas for part in area_.parts()]
    event, pid_tid, times, kinds = (np.concatenate(column) for column in zip(*found, strict=True))
    # Records that perf synthesizes at the start have no time and come first.
    order = np.argsort(times, kind="stable")
    is_sample = kinds[order] == records.SAMPLE
    rank = np.flatnonzero(is_sample)
    chosen = order[rank]
    samples = SampleOrder(
        area[chosen],
        record[chosen],
        rank,
        event[chosen],
        (pid_tid[chosen] & np.uint64(0xFFFF_FFFF)).astype(np.uint32),
        (pid_tid[chosen] >> np.uint64(32)).astype(np.uint32),
        times[chosen],
    )
    processes = Processes(samples.pid, samples.rank)
    for at in np.flatnonzero(np.isin(kinds[order], _PROCESS_RECORDS)).tolist():
        i = int(order[at])
        processes.add(recording.areas[area[i]], int(record[i]), int(kinds[i]), at)
    return samples, processes


_Heads = tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint32]]


def _heads(area: Area, events: list[Event]) -> _Heads:
    """Event, pid and tid, time, and type of each record."""
    kinds = area.types
    event = np.zeros(len(kinds), np.int32)
    pid_tid, times = np.zeros(len(kinds), np.uint64), np.zeros(len(kinds), np.uint64)
    is_sample = kinds == records.SAMPLE
    begin, end = area.offsets >> 3, (area.offsets + area.sizes) >> 3
    if len(events) > 1:
        event[is_sample] = _events_of(area, begin[is_sample], end[is_sample], events)
    for number, candidate in enumerate(events):
        own = np.flatnonzero(is_sample & (event == number))
        for column, head in ((pid_tid, SampleType.TID), (times, SampleType.TIME)):
            word = candidate.head_word(head)
            if word is not None:
                column[own] = _words(area, begin[own] + word, begin[own], end[own])
    other = np.flatnonzero(~is_sample & (kinds < records.ATTRIBUTE))
    back = events[0].trailer_word(SampleType.TIME)
    if back is not None:
        times[other] = _words(area, end[other] - back, begin[other], end[other])
    return event, pid_tid, times, kinds


def _words(
    area: Area, at: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """The words at `at`; 0 outside their records."""
    inside = (at > begin) & (at < end)
    value = area.words[np.where(inside, at, 0)] if len(at) else np.empty(0, np.uint64)
    value[~inside] = 0
    return value


def _events_of(
    area: Area, begin: NDArray[np.int64], end: NDArray[np.int64], events: list[Event]
) -> NDArray[np.int32]:
    """The event of each sample, by its id."""
    id_words = {event.head_word(SampleType.IDENTIFIER) or event.head_word(SampleType.ID) for event in events}
    id_word = id_words.pop()
    if id_words or id_word is None:
        raise RecordingError("the samples carry no event id", "record one event at a time")
    ids = np.array([identity for event in events for identity in event.ids], np.uint64)
    of_id = np.repeat(np.arange(len(events), dtype=np.int32), [len(event.ids) for event in events])
    order = np.argsort(ids, kind="stable")
    wanted = _words(area, begin + id_word, begin, end)
    if not len(ids):
        return np.zeros(len(begin), np.int32)
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    found: NDArray[np.int32] = np.where(ids[order][at] == wanted, of_id[order][at], 0)
    return found
