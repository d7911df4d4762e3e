"""Steps without CFI: the frame pointer, guarded."""

from __future__ import annotations

from memleak_android.unwind.arch.base import Arch


def frame_pointer_span(arch: Arch) -> tuple[int, int, int]:
    """(offset of the saved frame pointer, offset of the return address, bytes to the CFA), from fp."""
    saved, back = (words * arch.word_bytes for words in arch.frame_pointer_words)
    return saved, back, max(saved, back) + arch.word_bytes
