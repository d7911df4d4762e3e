"""RuleColumns as the lock-step adds them up: in words of the stack, and what is not plain is marked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import TraceEnd
from memleak_android.unwind.walk.rule_columns import LOST, LineKind, RuleColumns

Ints = NDArray[np.int64]

END_OF_KIND = np.zeros(len(LineKind), np.uint8)
END_OF_KIND[LineKind.ROOT] = TraceEnd.ROOT
END_OF_KIND[LineKind.NO_MAPPING] = TraceEnd.NO_MAPPING
END_OF_KIND[LineKind.UNSUPPORTED_RULE] = TraceEnd.UNSUPPORTED_RULE
END_OF_KIND[LineKind.NO_UNWIND_ROW] = TraceEnd.NO_UNWIND_ROW
END_OF_KIND[LineKind.START] = TraceEnd.NO_UNWIND_ROW


UNCERTAIN_BY_LINK = np.isin(
    np.arange(len(LineKind)), (LineKind.NO_MAPPING, LineKind.NO_UNWIND_ROW, LineKind.FRAME_POINTER)
)
UNCERTAIN_BY_STACK = np.arange(len(LineKind)) == LineKind.NO_MAPPING


class WordColumns:
    """By line number. cfa, back: words from the stack pointer to the CFA and from there to the return address.

    is_special: a line for which that is not all, or not enough to know that its step goes up and stays in the slice.
    saved: as RuleColumns has it, in words; KEPT and LOST as they are.
    """

    def __init__(self, columns: RuleColumns) -> None:
        self.rules = columns
        self._count = 0
        self.follow()

    def follow(self) -> None:
        """Takes up the lines that were added meanwhile."""
        rules = self.rules
        if self._count == len(rules):
            return
        self._count = len(rules)
        word_bytes = rules.arch.word_bytes
        shift = word_bytes.bit_length() - 1
        self.cfa: Ints = rules.cfa_offset >> shift
        self.back: Ints = rules.return_offset >> shift
        self.saved: Ints = np.where(rules.saved <= LOST, rules.saved, rules.saved >> shift)
        goes_up = (rules.cfa_offset > 0) & (rules.cfa_offset % word_bytes == 0)
        is_plain = (
            (rules.kind == LineKind.STEP) & (rules.cfa_register < 0) & goes_up & (self.cfa + self.back >= 0)
        )
        is_plain &= ~(rules.by_link | rules.cfa_is_read)
        self.is_special: NDArray[np.bool_] = ~is_plain
