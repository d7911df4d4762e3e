"""A recorded event: one perf_event_attr (include/uapi/linux/perf_event.h) with its ids and name."""

import struct
from dataclasses import dataclass
from enum import IntFlag


class SampleType(IntFlag):
    """Fields of a sample in bit order, except IDENTIFIER, which comes first."""

    IP = 1 << 0
    TID = 1 << 1
    TIME = 1 << 2
    ADDR = 1 << 3
    READ = 1 << 4
    CALLCHAIN = 1 << 5
    ID = 1 << 6
    CPU = 1 << 7
    PERIOD = 1 << 8
    STREAM_ID = 1 << 9
    RAW = 1 << 10
    BRANCH_STACK = 1 << 11
    REGS_USER = 1 << 12
    STACK_USER = 1 << 13
    IDENTIFIER = 1 << 16


# One word each, at the head of a sample and in this order.
HEAD = (
    SampleType.IDENTIFIER,
    SampleType.IP,
    SampleType.TID,
    SampleType.TIME,
    SampleType.ADDR,
    SampleType.ID,
    SampleType.STREAM_ID,
    SampleType.CPU,
    SampleType.PERIOD,
)
# One word each, at the end of every other record, if sample_id_all is set.
TRAILER = (
    SampleType.TID,
    SampleType.TIME,
    SampleType.ID,
    SampleType.STREAM_ID,
    SampleType.CPU,
    SampleType.IDENTIFIER,
)
_SAMPLE_ID_ALL = 1 << 18  # of the attribute's flags
_ATTRIBUTE = struct.Struct("<I4xQ8xQQQ24xQQ")
_HARDWARE = (
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
    "bus-cycles",
)
_SOFTWARE = ("cpu-clock", "task-clock", "page-faults", "context-switches", "cpu-migrations", "minor-faults", "major-faults")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a recording.

    ids: of its samples.
    registers: mask of perf's register numbers.
    """

    name: str
    sample_type: int
    read_format: int
    branch_sample_type: int
    registers: int
    has_trailers: bool
    ids: tuple[int, ...]

    @property
    def has_stacks(self) -> bool:
        wanted = SampleType.REGS_USER | SampleType.STACK_USER
        return self.sample_type & wanted == wanted

    def head_word(self, field: SampleType) -> int | None:
        """The index of the word that holds a field of HEAD; the header is word 0."""
        if not self.sample_type & field:
            return None
        return 1 + sum(bool(self.sample_type & before) for before in HEAD[: HEAD.index(field)])

    def trailer_word(self, field: SampleType) -> int | None:
        """Words from the end of another record back to a field of TRAILER."""
        if not self.has_trailers or not self.sample_type & field:
            return None
        return sum(bool(self.sample_type & later) for later in TRAILER[TRAILER.index(field) :])


def read_event(attribute: bytes, ids: tuple[int, ...], name: str = "") -> Event:
    """Decodes a perf_event_attr; an older kernel's is shorter."""
    kind, config, sample_type, read_format, flags, branches, registers = _ATTRIBUTE.unpack(
        attribute[: _ATTRIBUTE.size].ljust(_ATTRIBUTE.size, b"\0")
    )
    return Event(
        name or _generic_name(kind, config),
        sample_type,
        read_format,
        branches,
        registers,
        bool(flags & _SAMPLE_ID_ALL),
        ids,
    )


def _generic_name(kind: int, config: int) -> str:
    names = {0: _HARDWARE, 1: _SOFTWARE}.get(kind, ())
    return names[config] if config < len(names) else f"{kind}/{config:#x}"
