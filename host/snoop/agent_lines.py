"""The configuration lines of `memleakd snoop` (docs/wire-protocol.md, section 11)."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from memleak_android.host.snoop.placing import Probe, SnoopedFunction, SnoopPlan
from memleak_android.host.tracers.agent.session_options import file_lines
from memleak_android.host.wire.blocks import WIRE_VERSION


@dataclass(frozen=True, slots=True)
class SnoopOptions:
    """Options of a snoop session.

    pids: the processes; () if `command` is started.
    threads: only these; () for all.
    events: send calls, not only statistics.
    rate: calls of a function sent per second; 0 for all.
    stack_bytes: of each sent call; 0 for none.
    follow: trace the children of the single target.
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
    """All lines except the final `start`."""
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
        *_probe_lines(plan.probes),
    ]


def _function_lines(function: SnoopedFunction) -> Iterator[str]:
    yield f"function {int(function.has_return)}"
    for argument, kind, size in function.format.captures():
        yield f"capture {argument} {int(kind)} {size:x}"
    for condition in function.filters:
        comparison, bits, value = condition.compared(function.format)
        yield f"filter {condition.argument} {comparison} {bits} {value:x}"


def _probe_lines(probes: Sequence[Probe]) -> Iterator[str]:
    for (file, identity), group in groupby(probes, key=lambda probe: (probe.file, probe.identity)):
        yield from file_lines(file.agent_path, identity)
        yield f"object {file.pid} {quote(os.fsencode(file.agent_path), safe='/')}"
        for probe in group:
            yield f"at {probe.function} {int(probe.kind)} {probe.offset:x}"
