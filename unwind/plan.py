"""What to do at one pc of one address space: from mappings, modules and their rows to one StepPlan."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.expression import fold
from memleak_android.unwind.maps import AddressSpace, Mapping
from memleak_android.unwind.module import Module
from memleak_android.unwind.rules import UnwindRow
from memleak_android.unwind.sigreturn import signal_rows
from memleak_android.unwind.table import BAD_ROW
from memleak_android.unwind.trace import Method


class ModuleSource(Protocol):
    """Opens files for the unwinder. Called once per mapping that holds code of a stack."""

    def module(self, space: int, mapping: Mapping) -> Module | None:
        """The file behind a mapping of address space number `space`; None = not available."""
        ...


class StepKind(IntEnum):
    """ROW: by `row` (of method PROLOGUE: guarded). FRAME_POINTER: without one, guarded. The others end the trace.

    START: code that never returns. With a frame pointer of 0 (psABI §3.4.1: in the deepest frame it is to be 0)
    that is a thread's start; a 0 alone may be any value of a function that has no frame pointer.
    """

    ROW = 0
    FRAME_POINTER = 1
    NO_MAPPING = 2
    UNSUPPORTED_RULE = 3
    ROOT = 4
    START = 5
    NO_UNWIND_ROW = 6


# Where an interrupted frame may not have begun yet: its caller is where the link register points, or what a call
# to nowhere has just pushed.
UNCERTAIN_BY_LINK = frozenset({StepKind.NO_MAPPING, StepKind.NO_UNWIND_ROW, StepKind.FRAME_POINTER})
UNCERTAIN_BY_STACK = frozenset({StepKind.NO_MAPPING})


class StepPlan(NamedTuple):
    """How to step out of a frame. otherwise: by which row where what `row` claims is not confirmed."""

    kind: StepKind
    row: UnwindRow | None = None
    otherwise: UnwindRow | None = None


NO_MAPPING = StepPlan(StepKind.NO_MAPPING)
FRAME_POINTER = StepPlan(StepKind.FRAME_POINTER)
NO_UNWIND_ROW = StepPlan(StepKind.NO_UNWIND_ROW)
UNSUPPORTED_RULE = StepPlan(StepKind.UNSUPPORTED_RULE)
_CALL_BYTES_MAX = 7
_ADDRESS_BITS_MIN = 39  # the smallest user address space of Android and Linux on arm64
_ALL = (1 << 64) - 1
# Not _exit: exit itself goes straight there, and it has a caller.
_EXITS = frozenset({b"exit", b"pthread_exit", b"thrd_exit"})


class Planner:
    """Plans for many pcs at once. One per set of address spaces; modules are asked for once per mapping.

    Several threads may ask one; only one of them at a time does, and only then modules and their tables are used.
    """

    def __init__(
        self,
        arch: Arch,
        spaces: Sequence[AddressSpace],
        modules: ModuleSource,
        *,
        signature_mask: int | None = None,
        frame_pointers: bool = True,
    ) -> None:
        self.arch = arch
        self._signature_mask = signature_mask
        self.spaces = spaces
        self._modules = modules
        self._mask = None if arch.instruction_mask == _ALL else np.uint64(arch.instruction_mask)
        self._bounds: dict[int, tuple[NDArray[np.uint64], NDArray[np.uint64]]] = {}
        self._opened: dict[tuple[int, int], tuple[Module, int] | None] = {}
        self._announced: set[Module] = set()  # by a JIT compiler
        self._exits: dict[Module, frozenset[int]] = {}
        self._known: dict[Module, dict[int, StepPlan]] = {}
        self._by_record = FRAME_POINTER if arch.has_frame_records else NO_UNWIND_ROW
        self._unreadable = self._by_record if frame_pointers else NO_UNWIND_ROW
        self._plans: dict[tuple[int, int, bool], StepPlan] = {}
        self._lock = threading.RLock()

    def plan(self, space: int, pc: int, is_return: bool) -> StepPlan:
        """As plans(), for one pc, remembered."""
        key = (space, pc, is_return)
        plan = self._plans.get(key)
        if plan is None:
            one = self.plans(space, np.array([pc], np.uint64), np.array([is_return]))
            plan = self._plans[key] = one[0]
        return plan

    def plans(self, space: int, pcs: NDArray[np.uint64], is_return: NDArray[np.bool_]) -> list[StepPlan]:
        """One plan per pc. is_return: the pc is a return address, its code is looked up one byte before."""
        with self._lock:
            return self._plans_of(space, pcs, is_return)

    def _plans_of(self, space: int, pcs: NDArray[np.uint64], is_return: NDArray[np.bool_]) -> list[StepPlan]:
        plans = [NO_MAPPING] * len(pcs)
        if self._mask is not None:
            pcs = pcs & self._mask
        lookups = pcs - is_return.astype(np.uint64)
        starts, ends = self._bounds_of(space)
        if not len(starts):
            return plans
        at = np.searchsorted(starts, lookups, "right") - 1
        inside = (at >= 0) & (lookups < ends[np.maximum(at, 0)])
        for number in np.unique(at[inside]).tolist():
            mapping = self.spaces[space].mappings[number]
            if mapping.is_executable:
                chosen = np.flatnonzero(inside & (at == number))
                self._plan_mapping(space, number, mapping, pcs[chosen], lookups[chosen], chosen, plans)
        return plans

    def _plan_mapping(
        self,
        space: int,
        number: int,
        mapping: Mapping,
        pcs: NDArray[np.uint64],
        lookups: NDArray[np.uint64],
        places: NDArray[np.int64],
        plans: list[StepPlan],
    ) -> None:
        opened = self._open(space, number, mapping)
        if opened is None:
            for place in places.tolist():
                plans[place] = self._unreadable
            return
        module, bias = opened
        known = self._known.setdefault(module, {})
        keys = ((pcs + np.array(bias & (1 << 64) - 1, np.uint64)) * np.uint64(2) + (pcs != lookups)).tolist()
        missing: list[int] = []
        for i, (place, key) in enumerate(zip(places.tolist(), keys, strict=True)):
            plan = known.get(key)
            if plan is None:
                missing.append(i)
            else:
                plans[place] = plan
        if missing:
            self._plan_module(module, [keys[i] for i in missing], pcs[missing], places[missing], plans)

    def _plan_module(
        self,
        module: Module,
        keys: list[int],
        pcs: NDArray[np.uint64],
        places: NDArray[np.int64],
        plans: list[StepPlan],
    ) -> None:
        """keys: 2 * vaddr of the pc, + 1 for return addresses."""
        known, rows = self._known[module], module.table.rows
        numbers = np.array(keys, np.uint64)
        vaddrs = numbers >> np.uint64(1)
        ids = module.table.row_ids(vaddrs - (numbers & np.uint64(1)))
        plan_of = {BAD_ROW: UNSUPPORTED_RULE}
        for row_id in np.unique(ids[ids >= 0]).tolist():
            row = rows[row_id]
            plan_of[row_id] = StepPlan(
                StepKind.ROW, row._replace(method=Method.JIT) if module in self._announced else row
            )
        signals = signal_rows(self.arch, module, vaddrs)
        for i, (key, place, row_id) in enumerate(zip(keys, places.tolist(), ids.tolist(), strict=True)):
            plan = StepPlan(StepKind.ROW, signals[i]) if i in signals else plan_of.get(row_id)
            if plan is None:
                plan = self._without_row(module, key >> 1)
            elif plan.row is not None and plan.row.method is Method.EXIDX:
                plan = self._between_calls(module, key >> 1, bool(key & 1), plan)
            if plan.row is not None and plan.row.cfa_expression:
                # what it folds to may depend on the address: not remembered by vaddr
                plan = plan._replace(row=self._folded(plan.row, int(pcs[i])))
            else:
                known[key] = plan
            plans[place] = plan

    def _between_calls(self, module: Module, vaddr: int, is_return: bool, plan: StepPlan) -> StepPlan:
        """An exception index speaks of places where calls are made, and is silent about functions without an entry:
        linkers say `cannot unwind` for them. There the code ahead is believed."""
        row = plan.row
        assert row is not None
        if is_return and not row.ends_stack:
            return plan
        found = self._without_row(module, vaddr)
        return plan if found.row is None or found.row.same_caller(row) else found._replace(otherwise=row)

    def _without_row(self, module: Module, vaddr: int) -> StepPlan:
        """No CFI covers vaddr: what the code ahead says."""
        # capstone costs 30 ms to import, and most programs have CFI for all their code
        from memleak_android.unwind.epilogue import Dead, walk_to_return

        if module not in self._exits:
            self._exits[module] = module.functions(_EXITS)
        found = walk_to_return(self.arch, module.bytes_at, vaddr, self._exits[module])
        if isinstance(found, UnwindRow):
            return StepPlan(StepKind.ROW, found)
        kinds = {
            Dead.EXITS: StepKind.ROOT,
            Dead.STOPS: StepKind.START,
            Dead.USES_FRAME_POINTER: self._by_record.kind,
            Dead.NO_RETURN: StepKind.NO_UNWIND_ROW,
        }
        return StepPlan(kinds[found])

    def unsigned(self, space: int, address: int) -> int:
        """A return address without its signature."""
        return address & ~self.signature_mask(space) if self.arch.signature_bits else address

    def signature_mask(self, space: int) -> int:
        """The bits of a return address that may be a signature: what the target said, or what no mapping needs."""
        if self._signature_mask is not None:
            return self._signature_mask
        mappings = self.spaces[space].mappings
        bits = max(mappings[-1].end.bit_length() if mappings else 0, _ADDRESS_BITS_MIN)
        return self.arch.signature_bits & ~((1 << bits) - 1)

    def follows_call(self, space: int, address: int, *, or_erased: bool = False) -> bool:
        """Whether the instruction before an address is a call, as far as its code can be read.

        Signal handlers are not called by what they return to; of their trampolines it is True, too.
        or_erased: zeros count as code that cannot be read; files that were thinned out for keeping have them.
        """
        address &= self.arch.instruction_mask
        mapping = self.spaces[space].find(address - 1)
        if mapping is None or not mapping.is_executable:
            return False
        with self._lock:
            at = int(np.searchsorted(self._bounds_of(space)[0], np.uint64(address - 1), "right")) - 1
            opened = self._open(space, at, mapping)
        if opened is None:
            return True
        module, bias = opened
        before = module.bytes_at(address + bias - _CALL_BYTES_MAX, _CALL_BYTES_MAX)
        if or_erased and not any(before):
            return True
        if re.search(self.arch.call_pattern, before, re.DOTALL):
            return True
        row = self.plan(space, address, is_return=True).row
        return row is not None and row.is_signal

    def _folded(self, row: UnwindRow, pc: int) -> UnwindRow:
        """The row with a CFA expression that depends on one register and the pc only made plain."""
        known = {self.arch.registers[self.arch.pc].dwarf_number or -1: pc}
        linear = fold(row.cfa_expression, known, self.arch.word_bytes)
        if linear is None:
            return row
        return row._replace(cfa_register=linear.register, cfa_offset=linear.offset, cfa_expression=b"")

    def _bounds_of(self, space: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        bounds = self._bounds.get(space)
        if bounds is None:
            mappings = self.spaces[space].mappings
            starts = np.array([m.start for m in mappings], np.uint64)
            bounds = self._bounds[space] = starts, np.array([m.end for m in mappings], np.uint64)
        return bounds

    def _open(self, space: int, number: int, mapping: Mapping) -> tuple[Module, int] | None:
        key = (space, number)
        if key not in self._opened:
            module = self._modules.module(space, mapping)
            usable = module is not None and module.arch == self.arch
            self._opened[key] = None
            if module is not None and usable:
                self._opened[key] = module, 0 if mapping.is_symfile else module.bias_of(mapping)
                if mapping.is_symfile:
                    self._announced.add(module)
        return self._opened[key]
