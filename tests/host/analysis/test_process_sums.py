"""Names of processes, by the records of their starts, forks and exec calls."""

import numpy as np

from memleak_android.host.analysis.process_sums import process_names
from memleak_android.host.heap.capture import Capture
from memleak_android.host.wire.blocks import PROCESS, ProcessEvent


def test_fork_without_a_name_has_its_parents() -> None:
    """perf_event_open(2): PERF_RECORD_FORK has none. A child that calls exec later has its program's."""
    rows = np.zeros(5, PROCESS)
    for row, (event, pid, parent, name) in zip(
        rows,
        [
            (ProcessEvent.START, 7, 1, b"server"),
            (ProcessEvent.FORK, 8, 7, b""),
            (ProcessEvent.FORK, 9, 8, b""),
            (ProcessEvent.FORK, 10, 7, b""),
            (ProcessEvent.EXEC, 10, 0, b"sh"),
        ],
        strict=True,
    ):
        row["event"], row["pid"], row["parent"], row["comm"] = event, pid, parent, name
    capture = Capture()
    capture.processes.append(rows)
    assert process_names(capture) == {7: "server", 8: "server", 9: "server", 10: "sh"}
