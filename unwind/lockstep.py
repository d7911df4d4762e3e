"""One chunk of samples, stepped together. Addresses are kept relative to each slice's start, in bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.fallback import frame_pointer_span
from memleak_android.unwind.lockstep_state import IN_REGISTER, UNKNOWN, Chunk, Ints, Live, words_of
from memleak_android.unwind.rule_columns import LOST, LineKind
from memleak_android.unwind.step_lines import PC_BITS, StepLines, TrackMore
from memleak_android.unwind.trace import Method, SampleBatch, TraceEnd

_SP_DISTANCE_MAX = 1 << 48  # of sp from its slice; beyond, KEPT would not stay below it


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


class Lockstep:
    """Steps chunks; the lines it goes by are kept for the next one."""

    def __init__(self, lines: StepLines) -> None:
        self._lines = lines

    def unwind(self, samples: SampleBatch, chosen: Ints, max_frames: int) -> Chunk:
        """The traces of samples[chosen]."""
        while True:
            run = _Run(self._lines, samples, chosen)
            try:
                return run.unwind(max_frames)
            except TrackMore:
                continue  # at most once per callee-saved register in this object's life


class _Run:
    """One pass over one chunk."""

    def __init__(self, lines: StepLines, samples: SampleBatch, chosen: Ints) -> None:
        arch = samples.arch
        self._step_lines = lines
        self._columns = lines.columns
        self._tracked = list(lines.tracked)
        self._chosen = chosen
        self._base = samples.stack_address[chosen].view(np.int64)
        self._words = words_of(samples)
        self._slots = [arch.callee_saved[k] for k in self._tracked]
        self._captured = [samples.registers[chosen, slot] for slot in self._slots]
        self._mask = None if arch.code_mask == (1 << 64) - 1 else np.uint64(arch.code_mask)
        self._word_bytes = arch.word_bytes
        self._tag_bits = 64 - arch.address_bits if arch.word_bytes == 8 else 0
        self._is_signed = arch.signature_bits != 0
        self._uncertain = UNCERTAIN_BY_STACK if arch.link is None else UNCERTAIN_BY_LINK
        self._shift = arch.word_bytes.bit_length() - 1
        self._fp_saved, _, self._fp_span = frame_pointer_span(arch)
        self._levels: list[Live] = []
        self._added = np.zeros(len(chosen), np.int64)  # interpreter frames so far
        self._added_before: list[Ints | None] = []  # by level; None: none at all
        self._dex: list[Live] = []
        self._dex_numbers: list[Ints] = []
        self._always = np.ones(len(chosen), np.bool_)
        n = len(chosen)
        self._end = np.full(n, TraceEnd.MAX_FRAMES, np.uint8)
        self._scalar = ~(samples.known[chosen, arch.pc] & samples.known[chosen, arch.sp])
        if samples.beside is not None:
            self._scalar |= np.array([samples.beside[i] is not None for i in chosen.tolist()], np.bool_)
        known = samples.known[chosen]
        spaces = (samples.space[chosen] - lines.first_space).astype(np.uint64)
        self._link = None if arch.link is None else samples.registers[chosen, arch.link]
        self._link_known = known[:, arch.link or 0]
        self._signatures = lines.signature_masks(spaces) if self._is_signed else np.empty(0, np.uint64)
        sp = samples.registers[chosen, arch.sp].view(np.int64) - self._base
        self._scalar |= np.abs(sp) > _SP_DISTANCE_MAX
        self._starts_late = bool((sp < 0).any())  # a slice that begins above its stack pointer
        self._live = Live(
            np.arange(n),
            samples.registers[chosen, arch.pc],
            sp,
            samples.at_return[chosen],
            np.full(n, Method.REGISTERS, np.uint8),
            spaces << np.uint64(PC_BITS + 1),
            samples.stack_offset[chosen] // arch.word_bytes,
            samples.stack_length[chosen] - arch.word_bytes,
            [np.where(known[:, slot], IN_REGISTER, UNKNOWN) for slot in self._slots],
        )

    def unwind(self, max_frames: int) -> Chunk:
        live = self._live.keep(~self._scalar) if self._scalar.any() else self._live
        for _ in range(max_frames):
            if not len(live.owner):
                break
            self._added_before.append(self._added[live.owner] if self._dex else None)
            self._levels.append(live)
            live = self._step(live)
        if self._dex:
            frames = np.bincount(np.concatenate([x.owner for x in self._levels]), minlength=len(self._added))
            self._scalar |= (self._added > 0) & (frames + self._added > max_frames)
        return self._collect()

    def _step(self, live: Live) -> Live:
        columns = self._columns
        lines = self._step_lines.lines_of(live.pc, live.is_return, live.space_key)
        kinds = columns.kind.take(lines)
        fallback = None
        if kinds.any():
            self._end_by_kind(live, kinds)
            goes_on = kinds <= LineKind.FRAME_POINTER
            live, lines = live.keep(goes_on), lines[goes_on]
            kinds = kinds[goes_on]
            fallback = kinds == LineKind.FRAME_POINTER if kinds.any() else None
        cfa, readable = self._cfa(live, lines)
        back = cfa + columns.return_offset.take(lines)
        if self._link is None:
            readable &= (back >= 0) & (back <= live.limit)
        else:
            readable &= self._link_readable(live, lines, back)
        misplaced = np.bitwise_or.reduce(cfa) & (self._word_bytes - 1)
        if misplaced:
            readable &= ~self._flag_scalar(live, readable & ((cfa & (self._word_bytes - 1)) != 0))
        if fallback is not None:
            self._guard_frame_pointer(live, cfa, readable, fallback)
        if not readable.all():
            lost = ~readable if fallback is None else ~(readable | fallback)
            self._end[live.owner[lost]] = TraceEnd.STACK_TRUNCATED
            live, lines, cfa, back = live.keep(readable), lines[readable], cfa[readable], back[readable]
            fallback = None if fallback is None else fallback[readable]
        if self._link is None:
            address = self._word_at(live.word + (back >> self._shift))
        else:
            address = self._by_link(live, lines, back)
        if self._mask is not None:
            address &= self._mask
        return self._advance(live, lines, cfa, address, fallback)

    def _word_at(self, index: Ints) -> NDArray[np.uint64]:
        return self._words.take(index).astype(np.uint64, copy=False)

    def _link_readable(self, live: Live, lines: NDArray[np.int32], back: Ints) -> NDArray[np.bool_]:
        by_link = self._columns.by_link.take(lines)
        found: NDArray[np.bool_] = by_link | ((back >= 0) & (back <= live.limit))
        if len(self._levels) == 1:
            found &= ~by_link | self._link_known[live.owner]
        return found

    def _by_link(self, live: Live, lines: NDArray[np.int32], back: Ints) -> NDArray[np.uint64]:
        """Return addresses where code has a link register: a caller's holds its own pc, as the callee left it."""
        columns = self._columns
        by_link = columns.by_link.take(lines)
        address = self._word_at(np.where(by_link, 0, live.word + (back >> self._shift)))
        chosen = np.flatnonzero(by_link)
        if len(chosen):
            first = len(self._levels) == 1
            address[chosen] = self._link[live.owner[chosen]] if first else live.pc[chosen]  # type: ignore[index]
        signed = np.flatnonzero(columns.is_signed.take(lines))
        if len(signed):
            spaces = live.space_key[signed] >> np.uint64(PC_BITS + 1)
            address[signed] &= ~self._signatures[spaces]
        return address

    def _end_by_kind(self, live: Live, kinds: NDArray[np.uint8]) -> None:
        uncertain = self._uncertain[kinds] & ~live.is_return
        if self._is_signed:
            uncertain |= kinds == LineKind.FRAME_POINTER
        if uncertain.any():
            self._scalar[live.owner[uncertain]] = True
        ended = np.flatnonzero(kinds > LineKind.FRAME_POINTER)
        kind, owner = kinds[ended], live.owner[ended]
        self._end[owner] = END_OF_KIND[kind]
        self._scalar[owner[kind == LineKind.SCALAR]] = True
        starts = ended[kind == LineKind.START]
        if len(starts):
            fp, known = self._register(live, self._tracked.index(self._columns.fp_position), starts)
            self._end[live.owner[starts[known & (fp == 0)]]] = TraceEnd.ROOT

    def _flag_scalar(self, live: Live, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
        self._scalar[live.owner[which]] = True
        return which

    def _cfa(self, live: Live, lines: NDArray[np.int32]) -> tuple[Ints, NDArray[np.bool_]]:
        """(CFA relative to the slice, whether its base register is known)."""
        columns = self._columns
        offset = columns.cfa_offset.take(lines)
        base = columns.cfa_register.take(lines)
        cfa = live.sp + offset
        known = np.ones(len(cfa), np.bool_)
        for t, position in enumerate(self._tracked):
            chosen = np.flatnonzero(base == position)
            if len(chosen):
                value, known[chosen] = self._register(live, t, chosen)
                distance = value - self._base[live.owner[chosen]]
                if self._tag_bits:
                    distance = distance << self._tag_bits >> self._tag_bits
                cfa[chosen] = distance + offset[chosen]
        if columns.reads_cfa:
            self._read_cfa(live, lines, cfa, known)
        return cfa, known

    def _read_cfa(self, live: Live, lines: NDArray[np.int32], cfa: Ints, known: NDArray[np.bool_]) -> None:
        """Where the CFA is a word of the stack and a number, puts that in the place of the word's address."""
        chosen = np.flatnonzero(self._columns.cfa_is_read.take(lines) & known)
        at = cfa[chosen]
        inside = (at >= 0) & (at <= live.limit[chosen])
        known[chosen[~inside]] = False
        self._scalar[live.owner[chosen[inside & (at & (self._word_bytes - 1) != 0)]]] = True
        chosen, at = chosen[inside], at[inside]
        value = self._word_at(live.word[chosen] + (at >> self._shift)).view(np.int64)
        distance = value + self._columns.cfa_added.take(lines[chosen]) - self._base[live.owner[chosen]]
        cfa[chosen] = distance << self._tag_bits >> self._tag_bits if self._tag_bits else distance

    def _register(self, live: Live, t: int, chosen: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Values of the t-th tracked register in some live samples, and whether they are known."""
        place = live.place[t][chosen]
        value = self._word_at(np.maximum(place, 0)).view(np.int64)
        captured = place == IN_REGISTER
        if captured.any():
            value[captured] = self._captured[t][live.owner[chosen[captured]]].view(np.int64)
        return value, place != UNKNOWN

    def _guard_frame_pointer(
        self, live: Live, cfa: Ints, readable: NDArray[np.bool_], fallback: NDArray[np.bool_]
    ) -> None:
        """A step by frame pointer must stay in the slice and go up. Others end here; readable becomes False."""
        chosen = np.flatnonzero(fallback)
        fp = cfa[chosen] - self._fp_span
        saved = fp + self._fp_saved
        good = readable[chosen] & (fp >= live.sp[chosen]) & (saved >= 0) & (saved <= live.limit[chosen])
        self._end[live.owner[chosen[~good]]] = TraceEnd.NO_UNWIND_ROW
        readable[chosen] = good

    def _leads_nowhere(
        self, live: Live, cfa: Ints, address: NDArray[np.uint64], fallback: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Steps by frame pointer whose return address is in no executable mapping (or a lone 0)."""
        chosen = np.flatnonzero(fallback)
        target = address[chosen]
        always = np.ones(len(chosen), np.bool_)
        lines = self._step_lines.lines_of(target, always, live.space_key[chosen])
        saved = (cfa[chosen] - self._fp_span + self._fp_saved) >> self._shift
        chain_end = (target == 0) & (self._words[live.word[chosen] + saved] == 0)
        nowhere = np.zeros(len(fallback), np.bool_)
        nowhere[chosen] = (self._columns.kind.take(lines) == LineKind.NO_MAPPING) & ~chain_end
        return nowhere

    def _advance(
        self,
        live: Live,
        lines: NDArray[np.int32],
        cfa: Ints,
        address: NDArray[np.uint64],
        fallback: NDArray[np.bool_] | None,
    ) -> Live:
        ends = address == 0
        stays = cfa == live.sp if self._link is None else (cfa == live.sp) | self._columns.by_link.take(lines)
        stuck = (cfa < live.sp) | (stays & (address == live.pc))
        stuck &= ~ends
        self._end[live.owner[ends]] = TraceEnd.ROOT
        if stuck.any():
            self._end[live.owner[stuck]] = TraceEnd.NO_PROGRESS
            ends |= stuck
        if fallback is not None and fallback.any():
            nowhere = self._leads_nowhere(live, cfa, address, fallback)
            self._end[live.owner[nowhere]] = TraceEnd.NO_UNWIND_ROW
            ends |= nowhere
        place = [self._place(live, lines, cfa, t) for t in range(len(self._tracked))]
        always = self._always[: len(lines)]
        method = self._columns.method.take(lines)
        caller = Live(live.owner, address, cfa, always, method, live.space_key, live.word, live.limit, place)
        if self._columns.names_bytecode:
            self._add_bytecode(live, lines, caller, ~ends)
        return caller.keep(~ends) if ends.any() else caller

    def _add_bytecode(
        self, live: Live, lines: NDArray[np.int32], caller: Live, goes_on: NDArray[np.bool_]
    ) -> None:
        """Frames of the methods that an interpreter ran in `live`, between it and its caller."""
        position = self._columns.dex_register.take(lines)
        for t, tracked in enumerate(self._tracked):
            chosen = np.flatnonzero(goes_on & (position == tracked))
            value, known = self._register(live, t, chosen)
            pc = (value + self._columns.dex_offset.take(lines[chosen])).view(np.uint64)
            if self._mask is not None:
                pc &= self._mask
            chosen, pc = chosen[known & (pc != 0)], pc[known & (pc != 0)]
            if len(chosen):
                mask = np.zeros(len(lines), np.bool_)
                mask[chosen] = True
                frames = caller.keep(mask)
                frames.pc = pc
                self._dex.append(frames)
                self._dex_numbers.append(len(self._levels) + self._added[frames.owner])
                self._added[frames.owner] += 1

    def _place(self, live: Live, lines: NDArray[np.int32], cfa: Ints, t: int) -> Ints:
        """Where the t-th tracked register of the caller lies. A slot below sp is dead: see step.py."""
        offset = self._columns.saved[self._tracked[t]].take(lines)
        slot = cfa + offset
        place = np.where(slot < live.sp, live.place[t], live.word + (slot >> self._shift))
        outside = slot > live.limit
        if self._columns.loses[self._tracked[t]]:
            outside |= offset == LOST
        if self._starts_late:
            outside |= (slot < 0) & (slot >= live.sp)
        if outside.any():
            place[outside] = UNKNOWN
        return place

    def _level_numbers(self) -> Ints:
        """Of all frames in self._levels: the round that found them, and the interpreter frames before."""
        counts = [len(live.owner) for live in self._levels]
        numbers = np.repeat(np.arange(len(counts)), counts)
        if self._dex:
            numbers += np.concatenate(
                [
                    np.zeros(n, np.int64) if x is None else x
                    for n, x in zip(counts, self._added_before, strict=True)
                ]
            )
        return numbers

    def _collect(self) -> Chunk:
        for frames in self._dex:
            frames.is_return = np.zeros(len(frames.owner), np.bool_)
            frames.method = np.full(len(frames.owner), Method.DEX, np.uint8)
        levels = [self._live.keep(np.zeros(len(self._live.owner), np.bool_)), *self._levels, *self._dex]
        owner = np.concatenate([live.owner for live in levels])
        sp = np.concatenate([live.sp for live in levels])
        return Chunk(
            self._chosen,
            owner,
            np.concatenate([self._level_numbers(), *self._dex_numbers]),
            np.concatenate([live.pc for live in levels]),
            (sp + self._base[owner]).view(np.uint64),
            np.concatenate([live.is_return for live in levels]),
            np.concatenate([live.method for live in levels]),
            self._end,
            self._scalar,
        )
