"""Which line of RuleColumns each pc has, for a block of address spaces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.walk.pc_index import ABSENT, PcIndex
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.rule_columns import RuleColumns

PC_BITS = 48  # of a user address; what lies above is in no mapping


class TrackMore(Exception):
    """A CFA is based on a register whose place has not been carried along."""


class StepLines:
    """Lines over a block of address spaces that begins at `first_space`, learnt as they are asked for."""

    def __init__(self, planner: Planner, first_space: int) -> None:
        self._planner = planner
        self.first_space = first_space
        self.index = PcIndex()
        self._columns = RuleColumns(planner.arch)
        self._line_of_plan = np.empty(0, np.int32)
        self._tracked = [self._columns.fp_position]  # positions in arch.callee_saved

    def signature_masks(self, spaces: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """By address space of the block: the bits of a return address that may be a signature."""
        masks = np.zeros(int(spaces.max(initial=0)) + 1, np.uint64)
        for space in np.unique(spaces).tolist():
            masks[space] = self._planner.signature_mask(self.first_space + space)
        return masks

    @property
    def columns(self) -> RuleColumns:
        return self._columns

    @property
    def tracked(self) -> list[int]:
        return self._tracked

    def lines_of(
        self, pc: NDArray[np.uint64], is_return: NDArray[np.bool_] | bool, space_key: NDArray[np.uint64]
    ) -> NDArray[np.intp]:
        """The line of RuleColumns for each pc. space_key: the address space's number in the block, in the bits above pc and is_return."""
        keys = pc << np.uint64(1)
        keys |= space_key
        keys |= np.uint64(is_return) if isinstance(is_return, bool) else is_return.astype(np.uint64)
        if len(pc) and int(np.bitwise_or.reduce(pc)) >> PC_BITS:
            far = pc >> np.uint64(PC_BITS) != 0
            keys[far] = space_key[far]  # pc 0: in no mapping either
        lines = self.index.find(keys)
        if len(lines) and lines.min() == ABSENT:
            self.learn(np.unique(keys[lines == ABSENT]))
            lines = self.index.find(keys)
        return lines.astype(np.intp)  # NumPy converts other indices again for each column

    def learn(self, keys: NDArray[np.uint64]) -> None:
        """Finds out the lines of distinct new keys. Raises TrackMore when a chunk has to begin anew because of one."""
        spaces = (keys >> np.uint64(PC_BITS + 1)).astype(np.int64)
        pcs = (keys >> np.uint64(1)) & np.uint64((1 << PC_BITS) - 1)
        is_return = (keys & np.uint64(1)).astype(np.bool_)
        lines = np.empty(len(keys), np.int32)
        before = len(self._columns)
        for space in np.unique(spaces).tolist():
            chosen = np.flatnonzero(spaces == space)
            numbers = self._planner.numbers(self.first_space + space, pcs[chosen], is_return[chosen])
            lines[chosen] = self._lines_of_plans(numbers)
        self.index.insert(keys, lines)
        self._track(before)

    def _lines_of_plans(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        more = int(numbers.max(initial=-1)) + 1 - len(self._line_of_plan)
        if more > 0:
            self._line_of_plan = np.append(self._line_of_plan, np.full(more, ABSENT, np.int32))
        new = np.unique(numbers[self._line_of_plan[numbers] == ABSENT])
        self._line_of_plan[new] = [self._columns.line_of(self._planner.distinct[n]) for n in new.tolist()]
        return self._line_of_plan[numbers]

    def _track(self, before: int) -> None:
        new = slice(before, len(self._columns))
        bases = {*self._columns.cfa_register[new].tolist(), *self._columns.dex_register[new].tolist()} - {-1}
        if not bases <= set(self._tracked):
            self._tracked = sorted(bases | set(self._tracked))
            raise TrackMore
