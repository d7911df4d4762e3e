"""Stacks of interpreters: the frames in Python that a C function runs go before that function's own frame."""

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.stacks.python_code import PythonFunctions, python_module
from memleak_android.host.stacks.samples import Samples
from memleak_android.host.wire.blocks import FRAME_ROW, NO_MODULE, Rows
from memleak_android.host.wire.python_frames import SentPython
from memleak_android.unwind.trace import Method, TraceBatch

_NONE_FURTHER = np.uint64(2**64 - 1)


class PythonStacks:
    """Joins the two. functions: of the session; more may be added."""

    def __init__(self, functions: PythonFunctions, files: ModuleFiles) -> None:
        self._functions = functions
        self._files = files
        self._module: int | None = None

    def join(self, samples: Samples, native: TraceBatch, frames: Rows) -> tuple[TraceBatch, Rows]:
        """native, frames: the unwound samples and their frames (FRAME_ROW)."""
        sent = samples.python
        if not len(sent.frames):
            return native, frames
        added, owner = self._rows(samples, sent)
        place = _places(native, sent, owner)
        depth = np.diff(native.offsets)
        everyone = np.concatenate([owner, np.repeat(np.arange(len(native)), depth)])
        at = np.concatenate([place, np.arange(len(frames)) - np.repeat(native.offsets[:-1], depth)])
        is_native = np.arange(len(everyone)) >= len(owner)
        order = np.lexsort((is_native, at, everyone))  # stable: frames in Python keep their order
        joined = np.concatenate([added, frames])[order]
        return (
            TraceBatch(
                offsets=np.concatenate([[0], np.cumsum(np.bincount(everyone, minlength=len(native)))]),
                address=joined["address"],
                sp=joined["sp"],
                is_return=joined["is_return"] != 0,
                method=joined["method"].astype(np.uint8),
                end=native.end,
            ),
            joined,
        )

    def _rows(self, samples: Samples, sent: SentPython) -> tuple[Rows, NDArray[np.int64]]:
        """The frames in Python, and one more for those that are left out; and the trace of each."""
        if self._module is None:
            self._module = self._files.put(python_module(self._functions))
        owner = np.repeat(np.arange(len(sent.counts)), sent.counts)
        rows = np.zeros(len(owner), FRAME_ROW)
        pids = samples.rows["pid"][owner].astype(np.uint32)
        rows["vaddr"] = self._functions.vaddrs(pids, sent.frames["code"], sent.frames["offset"])
        rows["module"], rows["method"] = self._module, int(Method.PYTHON)
        cut = np.flatnonzero(sent.is_cut & (sent.counts > 0))
        more = np.zeros(len(cut), FRAME_ROW)
        more["module"], more["method"] = NO_MODULE, int(Method.FOLDED)
        behind = np.cumsum(sent.counts)[cut]
        return np.insert(rows, behind, more), np.insert(owner, behind, cut)


def _places(native: TraceBatch, sent: SentPython, owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row of _rows() the index in its native trace that it goes before: of the C function that runs it.

    That function's frame has the highest stack pointer that is not above the address which was sent. Frames whose function was
    not unwound, or is not known, go to the end.
    """
    address = _addresses(sent, owner)
    depth = np.diff(native.offsets)
    everyone = np.concatenate([np.repeat(np.arange(len(native)), depth), owner])
    values = np.concatenate([native.sp, address])
    is_python = np.arange(len(everyone)) >= len(native.sp)
    order = np.lexsort((is_python, values, everyone))
    n_below = np.empty(len(order), np.int64)
    n_below[order] = np.cumsum(~is_python[order])
    below = n_below[len(native.sp) :] - native.offsets[owner]
    return np.where(below < depth[owner], np.maximum(below - 1, 0), depth[owner])


def _addresses(sent: SentPython, owner: NDArray[np.int64]) -> NDArray[np.uint64]:
    """For each row of _rows() the address in the frame of the C function that runs it: the next that is sent further out."""
    known = sent.frames["stack_address"] != 0
    last = np.cumsum(sent.counts) - 1
    n = len(known)
    following = np.where(known, np.arange(n), n)
    following = np.minimum.accumulate(following[::-1])[::-1]
    sender = np.repeat(np.arange(len(sent.counts)), sent.counts)
    within = following <= last[sender]
    found = np.full(n, _NONE_FURTHER)
    found[within] = sent.frames["stack_address"][following[within]]
    if len(owner) > n:  # the rows for frames left out
        cut = np.flatnonzero(sent.is_cut & (sent.counts > 0))
        found = np.insert(found, np.cumsum(sent.counts)[cut], _NONE_FURTHER)
    return found
