"""Stacks that begin in the kernel: the frames that it walked itself, then the calling user frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.stacks.kernel_image import KernelImage, module_path
from memleak_android.host.stacks.modules import ModuleFile, ModuleFiles
from memleak_android.host.stacks.samples import Samples
from memleak_android.host.wire.blocks import FRAME_ROW, Rows
from memleak_android.host.wire.packed import ranges
from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd


class KernelStacks:
    """Joins the two parts. texts: payloads of KERNEL_SYMBOLS; more may be appended."""

    def __init__(self, texts: Sequence[str], files: ModuleFiles) -> None:
        self._texts = texts
        self._files = files
        self._n_read = 0
        self._image = KernelImage(())
        self._numbers: dict[str, int] = {}

    def join(self, samples: Samples, user: TraceBatch, user_frames: Rows) -> tuple[TraceBatch, Rows]:
        """user, user_frames: the unwound samples; meaningless where no registers were captured."""
        self._read_more()
        has_user = samples.rows["n_registers"] > 0
        n_user = np.where(has_user, np.diff(user.offsets), 0)
        n_kernel = samples.chains.counts
        offsets = np.concatenate([[0], np.cumsum(n_user + n_kernel)]).astype(np.int64)
        frames = np.empty(offsets[-1], FRAME_ROW)
        frames[ranges(offsets[:-1], n_kernel)] = self._kernel_frames(samples.chains.addresses)
        frames[ranges(offsets[:-1] + n_kernel, n_user)] = user_frames[ranges(user.offsets[:-1], n_user)]
        return (
            TraceBatch(
                offsets=offsets,
                address=frames["address"],
                sp=frames["sp"],
                is_return=frames["is_return"] != 0,
                method=frames["method"].astype(np.uint8),
                end=np.where(has_user, user.end, np.uint8(TraceEnd.ROOT)).astype(np.uint8),
            ),
            frames,
        )

    def _kernel_frames(self, addresses: NDArray[np.uint64]) -> Rows:
        frames = np.zeros(len(addresses), FRAME_ROW)
        frames["address"] = addresses
        frames["module"], frames["vaddr"] = self._image.locate(addresses, self._numbers)
        frames["method"], frames["is_return"] = int(Method.KERNEL), 1
        return frames

    def _read_more(self) -> None:
        if self._n_read == len(self._texts):
            return
        self._n_read = len(self._texts)
        self._image = KernelImage(self._texts)
        for module in self._image.modules:
            self._numbers[module] = self._files.put(self._image.file(module))


def kernel_modules(texts: Sequence[str]) -> dict[str, ModuleFile]:
    """By path, of a finished recording."""
    image = KernelImage(texts)
    return {module_path(module): image.file(module) for module in image.modules}
