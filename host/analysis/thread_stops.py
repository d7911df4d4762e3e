"""How long the agent stopped threads of an attached process (rows STOP of host/wire/blocks.py)."""

from __future__ import annotations

import numpy as np

from memleak_android.host.heap.capture import Capture
from memleak_android.host.profile.profile import StopMoment, ThreadStop
from memleak_android.host.wire.blocks import STOP, Stopped
from memleak_android.host.wire.blocks import StopMoment as MomentNumber

_MOMENTS = {
    MomentNumber.PREPARE: StopMoment.PREPARE,
    MomentNumber.ATTACH: StopMoment.ATTACH,
    MomentNumber.DETACH: StopMoment.DETACH,
}
_STOPS_MAX = 1024  # many times what the agent reports in one session


def thread_stops(capture: Capture) -> tuple[ThreadStop, ...]:
    """In order of time, at most the first 1024. Rows of unknown kinds are skipped."""
    rows = np.concatenate([np.empty(0, STOP), *capture.stops])
    rows = rows[np.isin(rows["moment"], list(_MOMENTS)) & np.isin(rows["stopped"], list(Stopped))]
    return tuple(_stop(row) for row in rows[np.argsort(rows["timestamp_ns"], kind="stable")[:_STOPS_MAX]])


def _stop(row: np.void) -> ThreadStop:
    return ThreadStop(
        moment=_MOMENTS[MomentNumber(row["moment"])],
        is_caller=int(row["stopped"]) == Stopped.CALLER,
        duration_ns=int(row["duration_ns"]),
        threads=int(row["n_threads"]),
        pid=int(row["pid"]),
    )
