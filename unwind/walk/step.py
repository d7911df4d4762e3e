"""The scalar unwinder: one stack, one frame at a time. The reference for the engine, and its slow path."""

from dataclasses import dataclass
from typing import NamedTuple

from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.cfi.expression import evaluate
from memleak_android.unwind.cfi.rules import DEX_MARK, RegisterRule, RuleKind, UnwindRow
from memleak_android.unwind.errors import ExpressionError, UnreadableMemoryError
from memleak_android.unwind.memory import StackSlice
from memleak_android.unwind.trace import Method, SampleBatch, TraceEnd
from memleak_android.unwind.walk.plan import (
    END_OF_KIND,
    UNCERTAIN_BY_LINK,
    UNCERTAIN_BY_STACK,
    Planner,
    StepKind,
    StepPlan,
)


class StepFrame(NamedTuple):
    """One frame, as the columns of TraceBatch hold it."""

    address: int
    sp: int
    is_return: bool
    method: Method


@dataclass(slots=True)
class Registers:
    """Register values of one frame by wire slot; None = not known.

    dex_pc: bytecode address in the method that the previous frame interpreted; 0, None: it interpreted none.
    """

    arch: Arch
    values: list[int | None]
    stack: StackSlice
    dex_pc: int | None = None

    @property
    def word_bytes(self) -> int:
        return self.arch.word_bytes

    def register(self, number: int) -> int:
        slot = self.arch.slot_of_dwarf.get(number)
        if slot is None:
            raise ExpressionError(f"DWARF register {number} is none of {self.arch.name}")
        value = self.values[slot]
        if value is None:
            raise UnreadableMemoryError(0)
        return value

    def memory(self, address: int, size: int) -> int:
        return self.stack.read(address, size)


class _End(Exception):
    def __init__(self, end: TraceEnd) -> None:
        self.end = end


def unwind_sample(
    samples: SampleBatch, i: int, planner: Planner, max_frames: int
) -> tuple[list[StepFrame], TraceEnd]:
    """The frames of one sample, innermost first, and why they end."""
    arch = samples.arch
    start, length = int(samples.stack_offset[i]), int(samples.stack_length[i])
    data = memoryview(samples.stack_bytes)[start : start + length]  # type: ignore[arg-type]
    extra = None if samples.extra_memory is None else samples.extra_memory[i]
    known = samples.known[i].tolist()
    values = [v if k else None for v, k in zip(samples.registers[i].tolist(), known, strict=True)]
    registers = Registers(arch, values, StackSlice(int(samples.stack_address[i]), data, arch, extra))
    return _Walk(planner, int(samples.space[i]), max_frames).run(registers, bool(samples.at_return[i]))


class _Walk:
    """One stack. A step by the link register is a claim: its frame goes again when it cannot be left."""

    def __init__(self, planner: Planner, space: int, max_frames: int) -> None:
        self._planner = planner
        self._space = space
        self._max_frames = max_frames
        self.frames: list[StepFrame] = []

    def run(self, registers: Registers, is_return: bool) -> tuple[list[StepFrame], TraceEnd]:
        registers = registers if is_return else self._with_stripped_pc(registers)
        method = Method.REGISTERS
        claim: tuple[Registers, StepPlan] | None = None  # the frame that was left by a claim
        while True:
            end = self._add(registers, is_return, method)
            if end is not None:
                return self.frames, end
            plan = self._plan(registers, is_return)
            uncalled = None if is_return else self._by_link(registers, plan)
            if uncalled is not None:
                claim, registers, is_return, method = (registers, plan), uncalled, True, Method.LR
                continue
            try:
                registers, method = self._step(registers, plan)
            except _End as stop:
                if stop.end is TraceEnd.ROOT or claim is None or not self._withdraw():
                    return self.frames, stop.end
                try:
                    registers, method = self._step(*claim)
                except _End as first:
                    return self.frames, first.end
            claim, is_return = None, method is not Method.SIGNAL

    def _with_stripped_pc(self, registers: Registers) -> Registers:
        """With a pc that leads somewhere, where it was interrupted while a signed address was being jumped to."""
        pc = registers.values[registers.arch.pc]
        if pc is not None and self._planner.spaces[self._space].find(pc) is None:
            values = list(registers.values)
            values[registers.arch.pc] = self._planner.strip_signature(self._space, pc)
            return Registers(registers.arch, values, registers.stack)
        return registers

    def _add(self, registers: Registers, is_return: bool, method: Method) -> TraceEnd | None:
        arch = registers.arch
        pc, sp = registers.values[arch.pc], registers.values[arch.sp]
        if pc is None:
            return TraceEnd.NO_MAPPING
        if registers.dex_pc and len(self.frames) < self._max_frames:
            self.frames.append(StepFrame(registers.dex_pc, sp or 0, False, Method.DEX))
        if len(self.frames) >= self._max_frames:
            return TraceEnd.MAX_FRAMES
        self.frames.append(StepFrame(pc, sp or 0, is_return, method))
        return TraceEnd.STACK_TRUNCATED if sp is None else None

    def _plan(self, registers: Registers, is_return: bool) -> StepPlan:
        pc = registers.values[registers.arch.pc]
        assert pc is not None
        return self._planner.plan(self._space, pc, is_return)

    def _step(self, registers: Registers, plan: StepPlan) -> tuple[Registers, Method]:
        arch = registers.arch
        pc, sp = registers.values[arch.pc], registers.values[arch.sp]
        assert pc is not None and sp is not None
        try:
            caller = _step(registers, plan, self._planner, self._space, pc, sp)
        except _End:
            if plan.fallback_row is None:
                raise
            plan = StepPlan(plan.kind, plan.fallback_row)
            caller = _step(registers, plan, self._planner, self._space, pc, sp)
        if plan.row is None:
            return caller, Method.FP
        return caller, Method.SIGNAL if plan.row.is_signal else plan.row.method

    def _withdraw(self) -> bool:
        """Takes the claimed frame away. It stays where it is all that is known: the pc led nowhere."""
        if len(self.frames) == 2 and self._planner.spaces[self._space].find(self.frames[0].address) is None:
            return False
        self.frames.pop()
        return True

    def _by_link(self, registers: Registers, plan: StepPlan) -> Registers | None:
        """The caller of an interrupted frame that has no rules: it may not have saved its return address yet."""
        arch = registers.arch
        if plan.kind not in (UNCERTAIN_BY_LINK if arch.link is not None else UNCERTAIN_BY_STACK):
            return None
        values = list(registers.values)
        if arch.link is not None:
            link = registers.values[arch.link]
        else:
            link, values[arch.sp] = _popped(registers)
        if not link or link == registers.values[arch.pc]:
            return None
        address = link & arch.word_mask
        if self._planner.spaces[self._space].find(address) is None:
            address = self._planner.strip_signature(self._space, address)
        if not self._planner.follows_call(self._space, address, or_erased=True):
            return None
        values[arch.pc] = address
        return Registers(arch, values, registers.stack)


def _popped(registers: Registers) -> tuple[int | None, int]:
    """The word that a call has just pushed, and the stack pointer before that."""
    word, sp = registers.arch.word_bytes, registers.values[registers.arch.sp]
    assert sp is not None
    try:
        return registers.stack.read(sp, word), sp + word
    except UnreadableMemoryError:
        return None, sp


def _step(registers: Registers, plan: StepPlan, planner: Planner, space: int, pc: int, sp: int) -> Registers:
    if plan.kind is StepKind.ROW:
        assert plan.row is not None
        caller = _step_by_row(registers, plan.row, planner, space, pc, sp)
        if plan.row.method is Method.PROLOGUE:
            _check_call_site(caller, planner, space)
        return caller
    if plan.kind is StepKind.FRAME_POINTER:
        return _step_by_frame_pointer(registers, planner, space, sp)
    is_start = plan.kind is StepKind.START and registers.values[registers.arch.fp] == 0
    raise _End(TraceEnd.ROOT if is_start else END_OF_KIND[plan.kind])


def _check_call_site(caller: Registers, planner: Planner, space: int) -> None:
    address = caller.values[caller.arch.pc]
    assert address is not None
    # With a link register the row claims little, so code with erased bytes may confirm it too.
    if not planner.follows_call(space, address, or_erased=caller.arch.link is not None):
        raise _End(TraceEnd.NO_UNWIND_ROW)


def _step_by_row(
    registers: Registers, row: UnwindRow, planner: Planner, space: int, pc: int, sp: int
) -> Registers:
    arch, stack = registers.arch, registers.stack
    mask = (1 << 8 * arch.word_bytes) - 1
    back = next((rule for rule in row.rules if rule.register == row.return_register), None)
    if back is not None and back.kind is RuleKind.UNDEFINED:
        raise _End(TraceEnd.ROOT)
    try:
        if row.cfa_expression:
            cfa = evaluate(row.cfa_expression, registers)
        else:
            cfa = (registers.register(row.cfa_register) + row.cfa_offset) & mask
        values: list[int | None] = [None] * len(arch.registers)
        for slot in arch.callee_saved:
            values[slot] = registers.values[slot]
        cfa = (stack.address + stack.relative(cfa)) & mask  # without a tag
        values[arch.sp] = cfa
        dex_pc = None
        for rule in row.rules:
            slot_of_rule = arch.slot_of_dwarf.get(rule.register)
            if slot_of_rule is not None and rule.register != row.return_register:
                values[slot_of_rule] = _restored(registers, rule, cfa, sp)
                if rule.expression.startswith(DEX_MARK):
                    dex_pc = values[slot_of_rule]
        address = _return_address(registers, row, back, cfa) & arch.word_mask
        if row.is_return_signed:
            address = planner.strip_signature(space, address)
    except UnreadableMemoryError:
        raise _End(TraceEnd.STACK_TRUNCATED) from None
    except ExpressionError:
        raise _End(TraceEnd.UNSUPPORTED_RULE) from None
    if address == 0 and not row.is_signal:  # a call through a null pointer may be what the signal is about
        raise _End(TraceEnd.ROOT)
    rise = stack.relative(cfa) - stack.relative(sp)
    # The link register of a call site leads back to it.
    stays = address == pc and (rise == 0 or _is_by_link(arch, row, back))
    if not row.is_signal and (rise < 0 or stays):
        raise _End(TraceEnd.NO_PROGRESS)
    values[arch.pc] = address
    if not row.is_signal and arch.link is not None:
        values[arch.link] = address
    return Registers(arch, values, stack, dex_pc)


def _is_by_link(arch: Arch, row: UnwindRow, back: RegisterRule | None) -> bool:
    is_kept = back is None or back.kind is RuleKind.SAME_VALUE
    return is_kept and arch.link is not None and arch.slot_of_dwarf.get(row.return_register) == arch.link


def _restored(registers: Registers, rule: RegisterRule, cfa: int, sp: int) -> int | None:
    """The caller's value of one register, or None. A register that is lost does not lose the frame."""
    slot = registers.arch.slot_of_dwarf[rule.register]
    try:
        if rule.kind is RuleKind.OFFSET and registers.stack.relative(
            cfa + rule.offset
        ) < registers.stack.relative(sp):
            # LLVM's epilogues keep the rule of a register that has been popped already: the slot below sp
            # is dead, the register holds its caller's value again.
            return registers.values[slot]
        return _value(registers, rule, cfa)
    except (UnreadableMemoryError, ExpressionError):
        return None


def _value(registers: Registers, rule: RegisterRule, cfa: int) -> int | None:
    word = registers.arch.word_bytes
    if rule.kind is RuleKind.OFFSET:
        return registers.stack.read(cfa + rule.offset, word)
    if rule.kind is RuleKind.SAME_VALUE:
        return registers.register(rule.register)
    if rule.kind is RuleKind.VAL_OFFSET:
        return (cfa + rule.offset) & ((1 << 8 * word) - 1)
    if rule.kind is RuleKind.REGISTER:
        return registers.register(rule.offset)
    if rule.kind is RuleKind.UNDEFINED:
        return None
    value = evaluate(rule.expression, registers, cfa)
    return registers.stack.read(value, word) if rule.kind is RuleKind.EXPRESSION else value


def _return_address(registers: Registers, row: UnwindRow, rule: RegisterRule | None, cfa: int) -> int:
    if rule is not None:
        value = _value(registers, rule, cfa)
        assert value is not None
        return value
    if registers.arch.slot_of_dwarf.get(row.return_register) == registers.arch.pc:
        raise _End(TraceEnd.UNSUPPORTED_RULE)  # the pc itself cannot keep its value over a call
    return registers.register(row.return_register)


def _step_by_frame_pointer(registers: Registers, planner: Planner, space: int, sp: int) -> Registers:
    arch, stack = registers.arch, registers.stack
    saved, back, span = arch.frame_record
    fp = registers.values[arch.fp]
    if fp is None or stack.relative(fp) < stack.relative(sp) or stack.relative(fp) % arch.word_bytes:
        raise _End(TraceEnd.NO_UNWIND_ROW)
    try:
        caller_fp = stack.read(fp + saved, arch.word_bytes)
        address = planner.strip_signature(space, stack.read(fp + back, arch.word_bytes) & arch.word_mask)
    except UnreadableMemoryError:
        raise _End(TraceEnd.NO_UNWIND_ROW) from None
    if address == 0 and caller_fp == 0:
        raise _End(TraceEnd.ROOT)
    if planner.plan(space, address, True).kind is StepKind.NO_MAPPING:
        raise _End(TraceEnd.NO_UNWIND_ROW)
    values: list[int | None] = [None] * len(arch.registers)
    for slot in arch.callee_saved:
        values[slot] = registers.values[slot]
    values[arch.fp], values[arch.pc] = caller_fp, address
    values[arch.sp] = stack.address + stack.relative(fp) + span  # without a tag
    if arch.link is not None:
        values[arch.link] = address
    return Registers(arch, values, stack)
