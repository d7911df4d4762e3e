"""How far walks by frame records alone agree with unwind information, over the same stacks."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from memleak_android.host.profile.profile import FpAgreement
from memleak_android.host.profile.runtime_sites import LIBC
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.wire.blocks import Rows
from memleak_android.host.wire.packed import ranges
from memleak_android.unwind.trace import TraceBatch, TraceEnd

# Frames of the C library at a stack's outer end, and the program's _start: glibc's __libc_start_call_main and
# __libc_start_main (csu/libc-start.c) or start_thread and clone3. Distributions build them without frame pointers.
_START_FRAMES_MAX = 3

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Comparison:
    """Sums over the compared stacks; FpAgreement explains each."""

    stacks: int = 0
    identical: int = 0
    start_missing: int = 0
    cut: int = 0
    caller_missing: int = 0
    skipped: int = 0
    wrong: int = 0
    common_frames: int = 0
    frames: int = 0

    def add(
        self,
        cfi: TraceBatch,
        fp: TraceBatch,
        is_judge: NDArray[np.bool_],
        frames: Rows,
        files: Sequence[ModuleFile],
    ) -> None:
        """Traces of the same samples. is_judge: by trace, whether both walks had the original stack.

        Only stacks that unwind information follows to the root are compared. frames: FRAME_ROWs of `cfi`.
        """
        numbers = np.flatnonzero(is_judge & (cfi.end == TraceEnd.ROOT))
        n_cfi, n_fp = np.diff(cfi.offsets)[numbers], np.diff(fp.offsets)[numbers]
        common = _common_prefix(cfi, fp)[numbers]
        is_whole_prefix = common == n_fp
        identical = is_whole_prefix & (n_fp == n_cfi)
        reaches_start = n_fp >= n_cfi - _start_frames(cfi, frames, files)[numbers]
        start_missing = is_whole_prefix & ~identical & reaches_start
        rest = np.flatnonzero(~is_whole_prefix)
        is_part = np.zeros(len(numbers), bool)
        is_part[rest] = [_is_part(cfi, fp, int(numbers[i])) for i in rest.tolist()]
        caller_missing = is_part & (common == 1)
        self.stacks += len(numbers)
        self.identical += int(identical.sum())
        self.start_missing += int(start_missing.sum())
        self.cut += int((is_whole_prefix & ~identical & ~start_missing).sum())
        self.caller_missing += int(caller_missing.sum())
        self.skipped += int((is_part & ~caller_missing).sum())
        self.wrong += int((~is_whole_prefix & ~is_part).sum())
        self.common_frames += int(common.sum())
        self.frames += int(n_cfi.sum())

    def result(self) -> FpAgreement:
        sums, n = asdict(self), max(self.stacks, 1)
        common, frames = sums.pop("common_frames"), sums.pop("frames")
        return FpAgreement(**sums, mean_common_prefix=common / n, mean_depth=frames / n)


def read(stored: object) -> FpAgreement | None:
    """From a recording's SESSION; None where that is not valid."""
    try:
        return msgspec.convert(stored, FpAgreement)
    except msgspec.ValidationError:
        return None


def _common_prefix(cfi: TraceBatch, fp: TraceBatch) -> Ints:
    """By trace: how many frames from the innermost on are equal in both."""
    counts = np.minimum(np.diff(cfi.offsets), np.diff(fp.offsets))
    owner = np.repeat(np.arange(len(counts)), counts)
    level = ranges(np.zeros_like(counts), counts)
    differs = cfi.address[cfi.offsets[owner] + level] != fp.address[fp.offsets[owner] + level]
    common = counts.copy()
    np.minimum.at(common, owner[differs], level[differs])
    return common


def _start_frames(cfi: TraceBatch, frames: Rows, files: Sequence[ModuleFile]) -> Ints:
    """How many frames at the outer end only start the program or thread, by trace."""
    libc = [number for number, file in enumerate(files) if re.fullmatch(LIBC, posixpath.basename(file.path))]
    is_start = np.isin(frames["module"], libc)
    counts = np.diff(cfi.offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    from_outside = cfi.offsets[owner + 1] - 1 - np.arange(len(owner))
    is_outermost = from_outside == 0
    # The program's own _start is the caller of the C library's start code.
    is_start[is_outermost] |= np.roll(is_start, 1)[is_outermost] & (counts[owner[is_outermost]] > 1)
    found = np.minimum(counts, _START_FRAMES_MAX)
    other = ~is_start
    np.minimum.at(found, owner[other], from_outside[other])
    return found


def _is_part(cfi: TraceBatch, fp: TraceBatch, number: int) -> bool:
    """Whether the frames by records are a subsequence of the frames by unwind information."""
    known = iter(cfi.address[cfi.offsets[number] : cfi.offsets[number + 1]].tolist())
    chain = fp.address[fp.offsets[number] : fp.offsets[number + 1]].tolist()
    return all(address in known for address in chain)
