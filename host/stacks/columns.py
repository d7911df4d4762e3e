"""Unwound traces → the rows of a recording: TRACE_ROWs, and FRAME_ROWs with module and vaddr."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.stacks.address_spaces import ProcessSpace
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.wire.blocks import FRAME_ROW, NO_MODULE, TRACE_ROW, Rows
from memleak_android.host.wire.packed import distinct
from memleak_android.unwind.trace import Method, TraceBatch


def trace_rows(evidence: Rows, batch: TraceBatch) -> Rows:
    """TRACE_ROWs of traces that were unwound from `evidence` (EVIDENCE)."""
    rows = np.empty(len(batch), TRACE_ROW)
    for name in ("sequence", "key", "pid", "function"):
        rows[name] = evidence[name]
    rows["n_frames"] = np.diff(batch.offsets)
    rows["end"] = batch.end
    return rows


def frame_rows(
    batch: TraceBatch, space: NDArray[np.int32], spaces: Sequence[ProcessSpace], files: ModuleFiles
) -> Rows:
    """FRAME_ROWs of a batch; each distinct address of a space is resolved once. space: (n,) of the traces."""
    rows = np.empty(len(batch.address), FRAME_ROW)
    rows["address"], rows["sp"] = batch.address, batch.sp
    rows["method"], rows["is_return"] = batch.method, batch.is_return & ~_restorers(batch)
    columns = np.repeat(space, np.diff(batch.offsets)), batch.address, rows["is_return"]
    first, row = distinct(*columns)
    found = np.empty((len(first), 2), np.uint64)
    files.begin_batch()
    for i, (number, address, is_return) in enumerate(
        zip(*(column[first].tolist() for column in columns), strict=True)
    ):
        found[i] = _locate(spaces[number], address, is_return, files)
    rows["module"], rows["vaddr"] = found[row, 0], found[row, 1]
    return rows


def _restorers(batch: TraceBatch) -> NDArray[np.bool_]:
    """Frames to which signal handlers return: no call is before their first instruction."""
    return np.append(batch.method[1:] == Method.SIGNAL, np.zeros(min(len(batch.method), 1), np.bool_))


def _locate(space: ProcessSpace, address: int, is_return: int, files: ModuleFiles) -> tuple[int, int]:
    """Module number and vaddr. A return address belongs to its call: it may be just beyond the module's end."""
    mapping = space.find(address - is_return)
    if mapping is None:
        return NO_MODULE, address
    number = files.number(space.pid, mapping)
    if number is None and (number := files.generated(mapping)) is not None:
        named = files.named(space.pid, address - is_return)
        if named is not None:
            return named[0], named[1] + is_return
    if number is None:
        return NO_MODULE, address
    return number, files.files[number].vaddr_of(mapping, address)
