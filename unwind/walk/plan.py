"""How to step out of one pc of one address space: from mappings, modules and their rows to a StepPlan."""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.arch.base import Arch, SignalFrame
from memleak_android.unwind.cfi.expression import fold
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.cfi.rules import RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.cfi.table import BAD_ROW
from memleak_android.unwind.maps import AddressSpace, Mapping
from memleak_android.unwind.reader import write_sleb
from memleak_android.unwind.trace import Method, TraceEnd

_DW_OP_BREG0 = 0x70
_DW_OP_DEREF = 0x06
_DW_OP_PLUS_UCONST = 0x23


def signal_rows(arch: Arch, module: Module, vaddrs: NDArray[np.uint64]) -> dict[int, UnwindRow]:
    """The rows of the vaddrs at which a signal trampoline begins, by index in vaddrs."""
    return {
        position: _row(arch, frame)
        for frame in arch.signal_frames
        for position in module.code_is(vaddrs, frame.code).tolist()
    }


@cache
def _row(arch: Arch, frame: SignalFrame) -> UnwindRow:
    rules = []
    cfa = b""
    for slot, offset in frame.saved:
        if frame.base:
            address = frame.base + bytes([_DW_OP_PLUS_UCONST]) + write_sleb(offset)  # not negative
        else:
            address = bytes([_DW_OP_BREG0 + arch.dwarf_of(arch.sp)]) + write_sleb(offset)
        if slot == arch.sp:
            cfa = address + bytes([_DW_OP_DEREF])
        else:
            rules.append(RegisterRule(arch.dwarf_of(slot), RuleKind.EXPRESSION, 0, address))
    # interrupted code was not called: it resumes at its pc, and its link register is an ordinary register
    back = arch.dwarf_of(arch.pc)
    return UnwindRow(-1, 0, cfa, tuple(sorted(rules)), back, True, Method.SIGNAL)


class ModuleSource(Protocol):
    """Opens files for the unwinder. Called once per mapping that holds code of a stack."""

    def module(self, space: int, mapping: Mapping) -> Module | None:
        """The file behind a mapping of address space number `space`; None = not available."""


class StepKind(IntEnum):
    """How a step is made (enum walk_kind of the engine). From ROOT on the plan ends the trace.

    START: code that never returns. With a frame pointer of 0 (psABI §3.4.1: in the deepest frame it is to be 0)
    that is a thread's start; a 0 alone may be any value of a function that has no frame pointer.
    """

    ROW = 0  # by `row` (of method PROLOGUE: guarded)
    FRAME_POINTER = 1  # without a row, guarded
    ROOT = 2  # return address undefined: the CFA is not needed
    NO_MAPPING = 3
    UNSUPPORTED_RULE = 4
    SCALAR = 5  # of the engine's lines only: by a row that needs step.py
    NO_UNWIND_ROW = 6
    START = 7


END_OF_KIND = {
    StepKind.ROOT: TraceEnd.ROOT,
    StepKind.NO_MAPPING: TraceEnd.NO_MAPPING,
    StepKind.UNSUPPORTED_RULE: TraceEnd.UNSUPPORTED_RULE,
    StepKind.NO_UNWIND_ROW: TraceEnd.NO_UNWIND_ROW,
    StepKind.START: TraceEnd.NO_UNWIND_ROW,
}
# Plans for a frame that may not be set up yet: its caller is in the link register, or was just pushed by a call
# to an unmapped address.
UNCERTAIN_BY_LINK = frozenset({StepKind.NO_MAPPING, StepKind.NO_UNWIND_ROW, StepKind.FRAME_POINTER})
UNCERTAIN_BY_STACK = frozenset({StepKind.NO_MAPPING})


class StepPlan(NamedTuple):
    """How to step out of a frame. fallback_row: the row to use if the step by `row` fails."""

    kind: StepKind
    row: UnwindRow | None = None
    fallback_row: UnwindRow | None = None


NO_MAPPING = StepPlan(StepKind.NO_MAPPING)
FRAME_POINTER = StepPlan(StepKind.FRAME_POINTER)
NO_UNWIND_ROW = StepPlan(StepKind.NO_UNWIND_ROW)
UNSUPPORTED_RULE = StepPlan(StepKind.UNSUPPORTED_RULE)
_CALL_BYTES_MAX = 7
_ALL = (1 << 64) - 1
_BY_ADDRESS = -1  # not a plan number: the plan depends on the address


class _Lookup(NamedTuple):
    vaddr: int
    is_return: bool
    pc: int


@dataclass(slots=True)
class _KnownRows:
    """Known facts about a table's rows, by row index. numbers: plan numbers."""

    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    has_frame: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


class Planner:
    """Plans for many pcs at once. One planner per set of address spaces; each mapping's module is opened once.

    Threads may share a planner: its lock guards modules and their tables.
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
        self.distinct: list[StepPlan] = []  # only grows
        self._number_of: dict[StepPlan, int] = {}
        self._number(NO_MAPPING)
        self._rows: dict[Module, _KnownRows] = {}
        self._known: dict[Module, dict[tuple[int, bool], int]] = {}  # of plans that depend on the address
        self._by_record = FRAME_POINTER if arch.has_frame_records else NO_UNWIND_ROW
        self._unreadable = self._by_record if frame_pointers else NO_UNWIND_ROW
        self._plans: dict[tuple[int, int, bool], StepPlan] = {}
        self._lock = threading.RLock()

    def plan(self, space: int, pc: int, is_return: bool) -> StepPlan:
        """Like plans(), for one pc, cached."""
        key = (space, pc, is_return)
        plan = self._plans.get(key)
        if plan is None:
            plans = self.plans(space, np.array([pc], np.uint64), np.array([is_return]))
            plan = self._plans[key] = plans[0]
        return plan

    def plans(self, space: int, pcs: NDArray[np.uint64], is_return: NDArray[np.bool_]) -> list[StepPlan]:
        """One plan per pc. is_return: the pc is a return address and is looked up at pc - 1."""
        return [self.distinct[number] for number in self.numbers(space, pcs, is_return).tolist()]

    def numbers(self, space: int, pcs: NDArray[np.uint64], is_return: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Like plans(), as indices in `distinct`."""
        numbers = np.zeros(len(pcs), np.int64)  # distinct[0] is NO_MAPPING
        if self._mask is not None:
            pcs = pcs & self._mask
        lookups = pcs - is_return.astype(np.uint64)
        with self._lock:
            starts, ends = self._bounds_of(space)
            if not len(starts):
                return numbers
            at = np.searchsorted(starts, lookups, "right") - 1
            inside = (at >= 0) & (lookups < ends[np.maximum(at, 0)])
            for number in np.unique(at[inside]).tolist():
                mapping = self.spaces[space].mappings[number]
                if mapping.is_executable:
                    chosen = np.flatnonzero(inside & (at == number))
                    numbers[chosen] = self._in_mapping(space, number, mapping, pcs[chosen], is_return[chosen])
        return numbers

    def _number(self, plan: StepPlan) -> int:
        number = self._number_of.get(plan)
        if number is None:
            number = self._number_of[plan] = len(self.distinct)
            self.distinct.append(plan)
        return number

    def _in_mapping(
        self, space: int, number: int, mapping: Mapping, pcs: NDArray[np.uint64], is_return: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        opened = self._open(space, number, mapping)
        if opened is None:
            return np.full(len(pcs), self._number(self._unreadable))
        module, bias = opened
        vaddrs = (pcs + np.array(bias & _ALL, np.uint64)) & np.uint64(_ALL >> 1)
        ids = module.table.row_ids(vaddrs - is_return)
        numbers = self._by_row(module, ids)
        signals = self._signals(module, vaddrs, ids)
        numbers[list(signals)] = _BY_ADDRESS
        for i in np.flatnonzero(numbers == _BY_ADDRESS).tolist():
            lookup = _Lookup(int(vaddrs[i]), bool(is_return[i]), int(pcs[i]))
            numbers[i] = self._by_address(module, lookup, int(ids[i]), signals.get(i))
        return numbers

    def _by_row(self, module: Module, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Plan numbers of row indices; _BY_ADDRESS if the row alone does not determine the plan."""
        rows, known = module.table.rows, self._rows.setdefault(module, _KnownRows())
        if len(known.numbers) < len(rows):
            new = rows[len(known.numbers) :]
            known.numbers = np.append(known.numbers, [self._of_row(module, row) for row in new])
            known.has_frame = np.append(known.has_frame, [self._has_frame(row) for row in new])
        numbers = np.full(len(ids), _BY_ADDRESS, np.int64)
        numbers[ids == BAD_ROW] = self._number(UNSUPPORTED_RULE)
        numbers[ids >= 0] = known.numbers[ids[ids >= 0]]
        return numbers

    def _signals(
        self, module: Module, vaddrs: NDArray[np.uint64], ids: NDArray[np.int64]
    ) -> dict[int, UnwindRow]:
        """The rows of signal trampolines, by index in vaddrs."""
        maybe = np.ones(len(ids), np.bool_)
        maybe[ids >= 0] = ~self._rows[module].has_frame[ids[ids >= 0]]
        candidates = np.flatnonzero(maybe)
        found = signal_rows(self.arch, module, vaddrs[candidates])
        return {int(candidates[i]): row for i, row in found.items()}

    def _has_frame(self, row: UnwindRow) -> bool:
        """Whether a row has more on the stack than a call pushes. Signal trampolines push nothing.

        Comparing the code itself costs more: it touches the code page.
        """
        if row.is_signal or row.cfa_expression or self._is_coarse(row):
            return False
        at_entry = self.arch.word_bytes if self.arch.link is None else 0
        return row.cfa_register != self.arch.dwarf_of(self.arch.sp) or row.cfa_offset > at_entry

    def _of_row(self, module: Module, row: UnwindRow) -> int:
        if row.cfa_expression or self._is_coarse(row):
            return _BY_ADDRESS
        return self._number(self._row_plan(module, row))

    def _row_plan(self, module: Module, row: UnwindRow) -> StepPlan:
        return StepPlan(StepKind.ROW, row._replace(method=Method.JIT) if module in self._announced else row)

    def _by_address(self, module: Module, lookup: _Lookup, row_id: int, signal: UnwindRow | None) -> int:
        known = self._known.setdefault(module, {})
        key = lookup.vaddr, lookup.is_return
        number = known.get(key)
        if number is not None:
            return number
        if signal is not None:
            plan = StepPlan(StepKind.ROW, signal)
        elif row_id < 0:
            plan = self._without_row(module, lookup.vaddr)
        else:
            row = module.table.rows[row_id]
            plan = self._row_plan(module, row)
            if self._is_coarse(row) and module not in self._announced:
                plan = self._between_calls(module, lookup.vaddr, lookup.is_return, plan)
        if plan.row is not None and plan.row.cfa_expression:
            # the folded row may depend on the address, so it is not cached by vaddr
            return self._number(plan._replace(row=self._folded(plan.row, lookup.pc)))
        number = known[key] = self._number(plan)
        return number

    def _is_coarse(self, row: UnwindRow) -> bool:
        """Whether a row may hold only where calls are made."""
        return (row.method is Method.EXIDX or not self.arch.has_epilogue_rules) and not row.is_signal

    def _between_calls(self, module: Module, vaddr: int, is_return: bool, plan: StepPlan) -> StepPlan:
        """An exception index covers call sites only and omits functions without an entry:
        linkers say `cannot unwind` for them. There the code is believed; its prologue only where it is all there is."""
        row = plan.row
        assert row is not None
        if is_return and not row.ends_stack:
            return plan
        found = self._without_row(module, vaddr, by_prologue=row.ends_stack)
        return plan if found.row is None or found.row.same_caller(row) else found._replace(fallback_row=row)

    def _without_row(self, module: Module, vaddr: int, *, by_prologue: bool = True) -> StepPlan:
        """No CFI covers vaddr: what the code ahead says, else the code before it."""
        # capstone costs 30 ms to import, and most programs have CFI for all their code
        from memleak_android.unwind.code.epilogue import Dead, read_prologue, walk_to_return

        found = walk_to_return(self.arch, module.bytes_at, vaddr, lambda target: target in module.exits)
        if isinstance(found, UnwindRow):
            return StepPlan(StepKind.ROW, found)
        before = read_prologue(self.arch, module.bytes_at, vaddr) if by_prologue else None
        if before is not None:
            return StepPlan(StepKind.ROW, before)
        kinds = {
            Dead.EXITS: StepKind.ROOT,
            Dead.STOPS: StepKind.START,
            Dead.USES_FRAME_POINTER: self._by_record.kind,
            Dead.NO_RETURN: StepKind.NO_UNWIND_ROW,
        }
        return StepPlan(kinds[found])

    def strip_signature(self, space: int, address: int) -> int:
        """A return address without its signature."""
        return address & ~self.signature_mask(space) if self.arch.signature_mask else address

    def signature_mask(self, space: int) -> int:
        """Bits of a return address that may hold a signature: the caller's mask, else from the mappings."""
        if self._signature_mask is not None:
            return self._signature_mask
        return self.spaces[space].signature_mask(self.arch)

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
        known = {self.arch.dwarf_of(self.arch.pc): pc}
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
