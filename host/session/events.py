"""--trace: every call as a line."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from memleak_android.host.session.observers import SessionObserver
from memleak_android.host.tracers.agent.session_options import PairPlan
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, Function
from memleak_android.host.wire.payloads import decode_events

_NAMES = {function.value: function.name.lower() for function in Function}
_RELEASING = {
    Function.FREE,
    Function.CFREE,
    Function.FREE_SIZED,
    Function.FREE_ALIGNED_SIZED,
    Function.MUNMAP,
}


@dataclass(frozen=True, slots=True)
class EventPrinter(SessionObserver):
    """Prints `SECONDS PID/TID malloc(24) = 0x55d0…`, in the order in which the calls were recorded.

    pairs: names the functions numbered from FIRST_PAIR_FUNCTION on.
    """

    pairs: PairPlan | None = None

    def events_arrived(self, payload: bytes) -> None:
        names, releasing, lines = dict(_NAMES), set[int](_RELEASING), list[str]()
        if self.pairs is not None:
            names |= {FIRST_PAIR_FUNCTION + i: name for i, (_, name) in enumerate(self.pairs.names)}
            releasing |= set(self.pairs.releases)
        for row in decode_events(payload).tolist():
            timestamp_ns, address, size, _, old, pid, tid, function, error = row
            name = names.get(function, f"function {function}")
            if function in releasing:
                call = f"{name}({address:#x}{f', {size}' if size else ''})"
            else:
                arguments = f"{old:#x}, {size}" if old else f"{size}"
                call = f"{name}({arguments}) = {_result(address, error)}"
            lines.append(f"{timestamp_ns / 1e9:.6f} {pid}/{tid} {call}")
        print("\n".join(lines), file=sys.stdout)


def _result(address: int, error: int) -> str:
    return f"{address:#x}" if not error else f"0 ({os.strerror(error)})"
