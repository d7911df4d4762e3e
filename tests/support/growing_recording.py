"""A recording that is still being written."""

from __future__ import annotations

import contextlib
import time
from contextlib import closing
from pathlib import Path

from memleak_android.host.errors import RecordingError
from memleak_android.host.payloads import decode_chunk
from memleak_android.host.recording import Recording
from memleak_android.host.wire import BlockKind


def wait_for_snapshot(path: Path, least_blocks: int = 0) -> None:
    """Until a snapshot of the live table that holds so many blocks is whole in the file."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(RecordingError), closing(Recording(path)) as recording:
            chunks = [decode_chunk(block) for _, block in recording.blocks() if block.kind == BlockKind.LIVE]
            if any(chunk.last and len(chunk.rows) >= least_blocks for chunk in chunks):
                return
        time.sleep(0.05)
    raise AssertionError(f"no snapshot of {least_blocks} blocks in {path}")
