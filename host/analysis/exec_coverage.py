"""Programs that a measured process became by exec and whose allocator has no probes."""

from __future__ import annotations

from memleak_android.host.heap.capture import Capture
from memleak_android.host.wire.blocks import Lost, ProcessEvent

_Identity = tuple[int, int, int]


def unprobed_program(capture: Capture, pid: int) -> list[str]:
    """A sentence if the last program of `pid` never mapped the file with the probes; for BPF sessions.

    The file is identified by device and inode: under another root the same path is another file.
    """
    allocator = capture.session.tracing.allocator
    names = [
        (int(row["timestamp_ns"]), bytes(row["comm"]).rstrip(b"\0").decode("utf-8", "replace"))
        for rows in capture.processes
        for row in rows[(rows["pid"] == pid) & (rows["event"] == ProcessEvent.EXEC)]
    ]
    if not allocator or len(names) < 2 or _has_lost_mappings(capture):
        return []
    probed: _Identity | None = None
    since: set[_Identity] = set()
    begin, name = max(names)
    for rows, paths in capture.mappings:
        for row, path in zip(rows, paths, strict=True):
            identity = int(row["device_major"]), int(row["device_minor"]), int(row["inode"])
            if path == allocator and probed is None:
                probed = identity
            if int(row["pid"]) == pid and int(row["timestamp_ns"]) >= begin and identity[2]:
                since.add(identity)
    if probed is None or not since or probed in since:
        return []
    return [f"{name}, which the target became by exec, was not measured: it does not use {allocator}"]


def _has_lost_mappings(capture: Capture) -> bool:
    return capture.status is not None and int(capture.status["lost"][Lost.MAPPINGS]) > 0
