"""A recording that is still being written."""

import contextlib
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from memleak_android.host.errors import RecordingError
from memleak_android.host.recording.file import Recording
from memleak_android.host.wire.blocks import Block, BlockKind
from memleak_android.host.wire.payloads import decode_chunk


def wait_for_snapshot(path: Path, least_blocks: int = 0) -> None:
    """Until a snapshot of the live table that holds so many blocks is whole in the file."""
    _wait(path, lambda blocks: _holds(blocks, least_blocks), f"no snapshot of {least_blocks} blocks")


def wait_for_block(path: Path, kind: BlockKind) -> None:
    """Until a block of this kind is whole in the file."""
    _wait(path, lambda blocks: any(block.kind == kind for block in blocks), f"no {kind.name}")


def _holds(blocks: list[Block], least: int) -> bool:
    chunks = [decode_chunk(block) for block in blocks if block.kind == BlockKind.LIVE]
    return any(chunk.last and len(chunk.rows) >= least for chunk in chunks)


def _wait(path: Path, is_there: Callable[[list[Block]], bool], complaint: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(RecordingError), closing(Recording(path)) as recording:
            if is_there([block for _, block in recording.blocks()]):
                return
        time.sleep(0.05)
    raise AssertionError(f"{complaint} in {path}")
