"""The configuration of `memleakd snoop` (docs/use/snoop.md, "The agent's input")."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from memleak_android.host.snoop.placing import Place, SnoopedFunction, SnoopPlan
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.host.wire.blocks import WIRE_VERSION


@dataclass(frozen=True, slots=True)
class SnoopOptions:
    """pids: the processes, or none where command is started. threads: only these, () = all. events: tell of calls,
    beside counting them. rate: calls of a function that are told of in a second, 0 = all. stack_bytes: of each such
    call, 0 = none. follow: children too, of the one target.
    """

    pids: tuple[int, ...] = ()
    command: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    events: bool = True
    rate: int = 0
    stack_bytes: int = 0
    ring_bytes: int = 16 << 20
    follow: bool = False
    without_multi: bool = False
    without_cookies: bool = False
    without_atomics: bool = False


def snoop_lines(options: SnoopOptions, plan: SnoopPlan) -> list[str]:
    """Without the final `start`."""
    return [
        f"wire {WIRE_VERSION}",
        *(f"pid {pid}" for pid in options.pids),
        *(f"arg {quote(os.fsencode(word), safe='/')}" for word in options.command),
        *(f"thread {tid}" for tid in options.threads),
        f"follow {int(options.follow)}",
        f"events {int(options.events)}",
        f"rate {options.rate}",
        f"stack_bytes {options.stack_bytes}",
        f"ring_bytes {options.ring_bytes}",
        f"without_multi {int(options.without_multi)}",
        f"without_cookies {int(options.without_cookies)}",
        f"without_atomics {int(options.without_atomics)}",
        *(line for function in plan.functions for line in _function_lines(function)),
        *_place_lines(plan.places),
    ]


def _function_lines(function: SnoopedFunction) -> Iterator[str]:
    yield f"function {int(function.has_return)}"
    for argument, kind, size in function.format.captures():
        yield f"capture {argument} {int(kind)} {size:x}"
    for one in function.filters:
        yield f"filter {one.argument} {one.comparison} {one.value:x}"


def _place_lines(places: Sequence[Place]) -> Iterator[str]:
    for file, group in groupby(places, key=lambda place: place.file):
        yield _object_line(file)
        for place in group:
            yield f"at {place.function} {int(place.kind)} {place.offset:x}"


def _object_line(file: ProbedFile) -> str:
    return f"object {file.pid} {quote(os.fsencode(file.agent_path), safe='/')}"
