"""The types of a Profile's fields that JSON writes in a form of its own (host/reports/json/schema.py)."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

HEX = "hex"  # in report.json as 0x…
RAW = "raw"  # read from report.json without escaping it: reports escape it, and ids are made of it
ALWAYS = "always"  # in report.json also where it has its default

Address = Annotated[int, HEX]
Count = Annotated[int, Meta(ge=0)]
BYTE = "byte"
UNIT = (
    "of space, and of its growth: byte, or the noun of a pair whose handles are counted (descriptor, thread)"
)
Unit = Annotated[str, Meta(description=UNIT)]
NO_LEAKS = ("runtime", "mmap")  # kinds that are held by design, or contain the heap
RawText = Annotated[str, RAW]
SiteId = Annotated[
    str,
    Meta(
        description="the same across runs; stacks through the same functions share it, whatever lines they pass"
    ),
]
Kind = Annotated[
    str,
    Meta(
        pattern="^(user|runtime|kernel|mmap|pair:.+)$",
        description="runtime: blocks of the C/C++ runtime itself that live until exit",
    ),
]
End = Annotated[str, Meta(description="why the stack ends; only ROOT is complete")]


def common_unit(units: Iterable[str]) -> str:
    """The unit of a sum: bytes where they differ, or of nothing."""
    found = set(units)
    return found.pop() if len(found) == 1 else BYTE


RunSeconds = Annotated[
    float,
    ALWAYS,
    Meta(description="mean seconds of a run of --scenario: times growth_bytes_per_s it is growth by run"),
]
