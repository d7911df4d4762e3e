"""What a tracer is asked to do, and the lines in which the agent is told so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from memleak_android.host.wire import Block

WIRE_VERSION_KEY = "wire"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """One session: exactly one of pid and command is set. Sizes in bytes, ages in nanoseconds."""

    pid: int | None = None
    command: tuple[str, ...] = ()
    follow: bool = False
    stack_bytes: int = 65528  # cap on a stack slice
    sample_bytes: int = 0  # 0 = every allocation
    every_stack: bool = False  # no deduplication of stacks
    older_ns: int = 500_000_000  # age from which evidence leaves the agent's nursery
    min_size: int = 0
    max_size: int = 2**64 - 1
    max_live: int = 4_000_000
    events: bool = False  # stream every call (--trace, --record-all)
    mmap: bool = False
    perf_events: bool = False  # BPF without the ring buffer, as on older kernels
    object: str | None = None  # -O: the library that holds the allocator
    symbols_prefix: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """One probed function. Offsets are file offsets in `path` (what uprobes take).

    entry_offset: where the entry program is placed (maybe later than the function's first instruction,
    see host/tracers/placement.py); return_offset: where the return probe is placed, None = none needed.
    text_low, text_high: file offsets of the executable segment of the allocator: a call whose return
    address lies inside is the allocator calling itself.
    entry_cost: "emulated" | "simulated" | "single-stepped"; return_cost likewise, "" when there is none.
    """

    function: str  # lower-case name of enum ml_function
    path: str  # as the agent can open it (/proc/PID/root/… for another mount namespace)
    function_offset: int
    entry_offset: int
    return_offset: int | None
    text_low: int
    text_high: int
    entry_cost: str
    return_cost: str = ""


class Tracer(Protocol):
    """A running session. blocks() ends after the END block or when the agent is gone."""

    name: str

    def blocks(self) -> Iterator[Block]: ...

    def request_snapshot(self) -> None: ...

    def stop(self) -> None:
        """Asks for the final snapshot and the END block; returns at once."""
        ...

    def close(self) -> None:
        """Ends the agent, whatever state it is in, and waits until nothing of it is left."""
        ...

    def abandon(self) -> None:
        """Ends the agent soon. Probes of one that must be killed go with it, which the kernel takes its time for."""
        ...


def session_lines(options: SessionOptions, wire_version: int) -> list[str]:
    """The configuration lines common to all collectors (docs/wire-protocol.md, "The agent's input")."""
    lines = [f"{WIRE_VERSION_KEY} {wire_version}"]
    if options.pid is not None:
        lines.append(f"pid {options.pid}")
    lines += [f"arg {quote(os.fsencode(argument), safe='/')}" for argument in options.command]
    lines += [
        f"follow {int(options.follow)}",
        f"stack_bytes {options.stack_bytes}",
        f"sample_bytes {options.sample_bytes}",
        f"every_stack {int(options.every_stack)}",
        f"older_ns {options.older_ns}",
        f"min_size {options.min_size}",
        f"max_size {options.max_size}",
        f"max_live {options.max_live}",
        f"events {int(options.events)}",
        f"mmap {int(options.mmap)}",
    ]
    return lines


def probe_line(probe: Probe, function_number: int) -> str:
    """`probe FUNCTION FUNCTION_OFFSET ENTRY RETURN|- TEXT_LOW TEXT_HIGH PATH`, numbers in hex, path quoted."""
    back = "-" if probe.return_offset is None else f"{probe.return_offset:x}"
    return (
        f"probe {function_number:x} {probe.function_offset:x} {probe.entry_offset:x} {back}"
        f" {probe.text_low:x} {probe.text_high:x} {quote(os.fsencode(probe.path), safe='/')}"
    )
