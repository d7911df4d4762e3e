"""Room for moved code in a process: the command `memleakd inject … memleak_reserve` and its answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memleak_android.host.console import one_line
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.parse import decimal
from memleak_android.host.tracers.agent.session import reported_error
from memleak_android.host.wire.blocks import STOP, Reason, Rows, StopMoment

_U16_MAX, _U32_MAX, _NS_MAX = 2**16 - 1, 2**32 - 1, 2**62 - 1
_STOPS_MAX = 64  # device/agent/protocol/stop_times.h


@dataclass(frozen=True, slots=True)
class Reservation:
    """distance: of the room (device/preload/hooks/inline_hook.h), or -errno. stops: rows of STOP."""

    distance: int
    stops: Rows


def reserve_command(agent: str, pid: int, shim: str, near: int) -> list[str]:
    return [agent, "inject", str(pid), shim, "memleak_reserve", f"{near:016x}"]


def reserved(pid: int, code: int, out: str, err: str) -> Reservation:
    """Parses the command's answer. Raises TargetError with its reason."""
    if code or not out:
        raise reported_error(
            Reason.TARGET_ERROR, one_line(err.strip()) or f"process {pid} could not be entered"
        )
    word = (out.split() or [""])[0]
    distance = decimal(word.removeprefix("-"))
    if distance is None:
        raise TargetError(f"process {pid} was entered, but its answer is not a number: {one_line(out)}")
    stops = [row for line in out.splitlines()[1 : 1 + _STOPS_MAX] if (row := _stop(line, pid))]
    return Reservation(-distance if word.startswith("-") else distance, np.array(stops, STOP))


def _stop(line: str, pid: int) -> tuple[int, ...] | None:
    """A row of STOP from `stop STOPPED TIMESTAMP_NS DURATION_NS THREADS`; None for other lines."""
    word, *texts = line.split() or [""]
    numbers = [number for text in texts if (number := decimal(text)) is not None]
    if word != "stop" or len(numbers) != 4 or len(texts) != 4:
        return None
    stopped, timestamp_ns, duration_ns, threads = map(min, numbers, (_U16_MAX, _NS_MAX, _NS_MAX, _U32_MAX))
    return timestamp_ns, duration_ns, pid, threads, StopMoment.PREPARE, stopped, 0
