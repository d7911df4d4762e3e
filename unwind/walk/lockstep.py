"""One chunk of samples, stepped together. Places on a stack are positions in the words of all slices.

Most lines say: the CFA lies some words above the stack pointer, the return address below it. That is done for all
samples alike; what is not so plain is done once more, for those samples only (_special).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.trace import Method, SampleBatch, TraceEnd
from memleak_android.unwind.walk.fallback import frame_pointer_span
from memleak_android.unwind.walk.lockstep_columns import (
    END_OF_KIND,
    UNCERTAIN_BY_LINK,
    UNCERTAIN_BY_STACK,
    WordColumns,
)
from memleak_android.unwind.walk.lockstep_state import (
    IN_REGISTER,
    UNKNOWN,
    Chunk,
    FoundFrames,
    Ints,
    Live,
    words_of,
)
from memleak_android.unwind.walk.rule_columns import LOST, LineKind
from memleak_android.unwind.walk.step_lines import PC_BITS, StepLines, TrackMore

_SP_DISTANCE_MAX = 1 << 48  # of sp from its slice; beyond, KEPT would not stay below it
# looked up once: an enumeration's attribute costs as much as a hundred samples
_FRAME_POINTER, _SCALAR, _START = int(LineKind.FRAME_POINTER), int(LineKind.SCALAR), int(LineKind.START)
_ROOT, _TRUNCATED = int(TraceEnd.ROOT), int(TraceEnd.STACK_TRUNCATED)
_NO_PROGRESS, _NO_UNWIND_ROW = int(TraceEnd.NO_PROGRESS), int(TraceEnd.NO_UNWIND_ROW)


class Lockstep:
    """Steps chunks; the lines it goes by are kept for the next one."""

    def __init__(self, lines: StepLines) -> None:
        self._lines = lines
        self._columns = WordColumns(lines.columns)

    def unwind(self, samples: SampleBatch, chosen: Ints, max_frames: int) -> Chunk:
        """The traces of samples[chosen]."""
        while True:
            run = _Run(self._lines, self._columns, samples, chosen)
            try:
                return run.unwind(max_frames)
            except TrackMore:
                continue  # at most once per callee-saved register in this object's life


class _Run:
    """One pass over one chunk."""

    def __init__(self, lines: StepLines, columns: WordColumns, samples: SampleBatch, chosen: Ints) -> None:
        arch = samples.arch
        n = len(chosen)
        self._step_lines = lines
        self._columns = columns
        self._tracked = list(lines.tracked)
        self._chosen = chosen
        self._words = words_of(samples)
        self._slots = [arch.callee_saved[k] for k in self._tracked]
        self._captured = [samples.registers[chosen, slot] for slot in self._slots]
        self._mask = None if arch.code_mask == (1 << 64) - 1 else np.uint64(arch.code_mask)
        self._word_bytes = arch.word_bytes
        self._shift = arch.word_bytes.bit_length() - 1
        self._tag_bits = 64 - arch.address_bits if arch.word_bytes == 8 else 0
        self._is_signed = arch.signature_bits != 0
        self._uncertain = UNCERTAIN_BY_STACK if arch.link is None else UNCERTAIN_BY_LINK
        saved, _, span = frame_pointer_span(arch)
        self._fp_saved, self._fp_span = saved >> self._shift, span >> self._shift
        self._found = FoundFrames(n)
        self._end = np.full(n, TraceEnd.MAX_FRAMES, np.uint8)
        known = samples.known[chosen]
        self._scalar = ~(known[:, arch.pc] & known[:, arch.sp])
        if samples.beside is not None:
            self._scalar |= np.array([samples.beside[i] is not None for i in chosen.tolist()], np.bool_)
        spaces = (samples.space[chosen] - lines.first_space).astype(np.uint64)
        self._link = None if arch.link is None else samples.registers[chosen, arch.link]
        self._link_known = known[:, arch.link or 0]
        self._signatures = lines.signature_masks(spaces) if self._is_signed else np.empty(0, np.uint64)
        self._base = samples.stack_address[chosen].view(np.int64)
        self._start = samples.stack_offset[chosen] >> self._shift
        distance = samples.registers[chosen, arch.sp].view(np.int64) - self._base
        self._scalar |= (np.abs(distance) > _SP_DISTANCE_MAX) | (distance & (self._word_bytes - 1) != 0)
        self._starts_late = bool((distance < 0).any())  # a slice that begins above its stack pointer
        self._is_return = samples.at_return[chosen]
        self._live = Live(
            np.arange(n),
            samples.registers[chosen, arch.pc],
            self._start + (distance >> self._shift),
            np.full(n, Method.REGISTERS, np.uint8),
            spaces << np.uint64(PC_BITS + 1),
            self._start + (samples.stack_length[chosen] >> self._shift) - 1,
            [np.where(known[:, slot], IN_REGISTER, UNKNOWN) for slot in self._slots],
        )

    def unwind(self, max_frames: int) -> Chunk:
        live = self._live.keep(~self._scalar) if self._scalar.any() else self._live
        for _ in range(max_frames):
            if not len(live.owner):
                break
            self._found.add(live)
            live = self._step(live)
        self._scalar |= self._found.exceeds(max_frames)
        offset = self._base - (self._start << self._shift)
        found = self._found.frames(self._shift, offset, self._is_return)
        return Chunk(self._chosen, *found, self._end, self._scalar)

    def _step(self, live: Live) -> Live:
        columns = self._columns
        is_return = self._found.rounds > 1 or self._is_return.take(live.owner)
        lines = self._step_lines.lines_of(live.pc, is_return, live.space_key)
        columns.follow()
        cfa = columns.cfa.take(lines)
        cfa += live.sp
        back = columns.back.take(lines)
        back += cfa
        stays = np.ones(len(lines), np.bool_)
        special = columns.is_special.take(lines).nonzero()[0]
        if len(special):
            special = self._special(live, lines, cfa, back, stays, special)
        self._end_truncated(live, lines, back, stays)
        address = self._words.take(back).astype(np.uint64, copy=False)
        if self._link is not None:
            self._take_links(live, lines, address, special)
        if self._mask is not None:
            address &= self._mask
        if len(special):
            self._end_stuck(live, lines, cfa, address, stays, special)
        is_over = (address == 0).nonzero()[0]
        if len(is_over):
            is_over = is_over[stays[is_over]]
            self._end[live.owner[is_over]] = _ROOT
            stays[is_over] = False
        return self._caller(live, lines, cfa, address, stays)

    def _special(
        self,
        live: Live,
        lines: NDArray[np.intp],
        cfa: Ints,
        back: Ints,
        stays: NDArray[np.bool_],
        chosen: Ints,
    ) -> Ints:
        """Puts right what is not plain about the chosen samples; returns those of them that step on."""
        rules = self._columns.rules
        kinds = rules.kind.take(lines[chosen])
        self._end_by_kind(live, kinds, chosen)
        back[chosen] = 0  # which can be read
        goes_on = kinds <= _FRAME_POINTER
        stays[chosen[~goes_on]] = False
        chosen = chosen[goes_on]
        at = lines[chosen]
        distance, good = self._cfa(live, at, chosen)
        place = self._start[live.owner[chosen]] + (distance >> self._shift)
        cfa[chosen] = place
        place = place + self._columns.back.take(at)
        good &= self._is_readable(live, at, chosen, place)
        misplaced = good & ((distance & (self._word_bytes - 1)) != 0)
        self._scalar[live.owner[chosen[misplaced]]] = True
        good &= ~misplaced
        fallback = kinds[goes_on] == _FRAME_POINTER
        if fallback.any():
            self._guard_frame_pointer(live, cfa, good, chosen, fallback)
        self._end[live.owner[chosen[~(good | fallback)]]] = _TRUNCATED
        stays[chosen[~good]] = False
        reads = good if self._link is None else good & ~rules.by_link.take(at)
        back[chosen[reads]] = place[reads]
        return chosen[good]

    def _is_readable(self, live: Live, at: NDArray[np.intp], chosen: Ints, place: Ints) -> NDArray[np.bool_]:
        """Whether the return addresses of the chosen samples, of lines `at`, are known."""
        owner = live.owner[chosen]
        inside: NDArray[np.bool_] = (place >= self._start[owner]) & (place <= live.limit[chosen])
        if self._link is not None:
            by_link = self._columns.rules.by_link.take(at)
            inside |= by_link
            if self._found.rounds == 1:
                inside &= ~by_link | self._link_known[owner]
        return inside

    def _end_truncated(
        self, live: Live, lines: NDArray[np.intp], back: Ints, stays: NDArray[np.bool_]
    ) -> None:
        """Plain lines whose return address lies outside its slice. back: 0 in its place."""
        outside = back > live.limit
        if self._starts_late:
            outside |= back < self._start[live.owner]
        chosen = outside.nonzero()[0]
        if len(chosen):
            chosen = chosen[~self._columns.is_special.take(lines[chosen])]
            self._end[live.owner[chosen]] = _TRUNCATED
            stays[chosen] = False
            back[chosen] = 0

    def _take_links(
        self, live: Live, lines: NDArray[np.intp], address: NDArray[np.uint64], special: Ints
    ) -> None:
        """Return addresses where code has a link register: a caller's holds its own pc, as the callee left it."""
        rules = self._columns.rules
        chosen = special[rules.by_link.take(lines[special])]
        if len(chosen):
            first = self._found.rounds == 1
            address[chosen] = self._link[live.owner[chosen]] if first else live.pc[chosen]  # type: ignore[index]
        signed = rules.is_signed.take(lines).nonzero()[0]
        if len(signed):
            spaces = live.space_key[signed] >> np.uint64(PC_BITS + 1)
            address[signed] &= ~self._signatures[spaces]

    def _end_by_kind(self, live: Live, kinds: NDArray[np.uint8], chosen: Ints) -> None:
        owner = live.owner[chosen]
        uncertain = self._uncertain[kinds]
        uncertain &= ~self._is_return[owner] if self._found.rounds == 1 else False
        if self._is_signed:
            uncertain |= kinds == _FRAME_POINTER
        self._scalar[owner[uncertain]] = True
        ended = kinds > _FRAME_POINTER
        self._end[owner[ended]] = END_OF_KIND[kinds[ended]]
        self._scalar[owner[kinds == _SCALAR]] = True
        starts = chosen[kinds == _START]
        if len(starts):
            fp, known = self._register(live, self._tracked.index(self._columns.rules.fp_position), starts)
            self._end[live.owner[starts[known & (fp == 0)]]] = _ROOT

    def _cfa(self, live: Live, at: NDArray[np.intp], chosen: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """(CFA in bytes from the slice's start, whether its base is known) of the chosen samples, of lines `at`."""
        rules = self._columns.rules
        offset, base = rules.cfa_offset.take(at), rules.cfa_register.take(at)
        owner = live.owner[chosen]
        cfa = ((live.sp[chosen] - self._start[owner]) << self._shift) + offset
        known = np.ones(len(cfa), np.bool_)
        for t, position in enumerate(self._tracked):
            based = (base == position).nonzero()[0]
            if len(based):
                value, known[based] = self._register(live, t, chosen[based])
                cfa[based] = self._distance(value, owner[based]) + offset[based]
        if rules.reads_cfa:
            self._read_cfa(live, at, chosen, cfa, known)
        return cfa, known

    def _distance(self, address: Ints, owner: Ints) -> Ints:
        """Bytes from the start of the owner's slice to an address, whatever its tag."""
        distance = address - self._base[owner]
        return distance << self._tag_bits >> self._tag_bits if self._tag_bits else distance

    def _read_cfa(
        self, live: Live, at: NDArray[np.intp], chosen: Ints, cfa: Ints, known: NDArray[np.bool_]
    ) -> None:
        """Where the CFA is a word of the stack and a number, puts that in the place of the word's distance."""
        rules = self._columns.rules
        read = (rules.cfa_is_read.take(at) & known).nonzero()[0]
        owner, distance = live.owner[chosen[read]], cfa[read]
        place = self._start[owner] + (distance >> self._shift)
        inside = (distance >= 0) & (place <= live.limit[chosen[read]])
        known[read[~inside]] = False
        self._scalar[owner[inside & (distance & (self._word_bytes - 1) != 0)]] = True
        read, owner, place = read[inside], owner[inside], place[inside]
        value = self._word_at(place).view(np.int64)
        cfa[read] = self._distance(value + rules.cfa_added.take(at[read]), owner)

    def _word_at(self, place: Ints) -> NDArray[np.uint64]:
        return self._words.take(place).astype(np.uint64, copy=False)

    def _register(self, live: Live, t: int, chosen: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Values of the t-th tracked register in some live samples, and whether they are known."""
        place = live.place[t][chosen]
        value = self._word_at(np.maximum(place, 0)).view(np.int64)
        captured = place == IN_REGISTER
        if captured.any():
            value[captured] = self._captured[t][live.owner[chosen[captured]]].view(np.int64)
        return value, place != UNKNOWN

    def _guard_frame_pointer(
        self,
        live: Live,
        cfa: Ints,
        good: NDArray[np.bool_],
        chosen: Ints,
        fallback: NDArray[np.bool_],
    ) -> None:
        """A step by frame pointer must stay in the slice and go up. Others end here; good becomes False."""
        at = chosen[fallback]
        owner = live.owner[at]
        fp = cfa[at] - self._fp_span
        saved = fp + self._fp_saved
        is_guarded = good[fallback] & (fp >= live.sp[at])
        is_guarded &= (saved >= self._start[owner]) & (saved <= live.limit[at])
        self._end[owner[~is_guarded]] = _NO_UNWIND_ROW
        good[fallback] = is_guarded

    def _end_stuck(
        self,
        live: Live,
        lines: NDArray[np.intp],
        cfa: Ints,
        address: NDArray[np.uint64],
        stays: NDArray[np.bool_],
        special: Ints,
    ) -> None:
        """Special steps that lead nowhere: down, to themselves, by frame pointer out of all code (or to a lone 0)."""
        rules, at = self._columns.rules, lines[special]
        to, sp, target = cfa[special], live.sp[special], address[special]
        same = (to == sp) | rules.by_link.take(at)
        stuck = ((to < sp) | (same & (target == live.pc[special]))) & (target != 0)
        self._end[live.owner[special[stuck]]] = _NO_PROGRESS
        stays[special[stuck]] = False
        chosen = special[rules.kind.take(at) == _FRAME_POINTER]
        if len(chosen):
            found = self._step_lines.lines_of(address[chosen], True, live.space_key[chosen])
            saved = self._words[cfa[chosen] - self._fp_span + self._fp_saved]
            chain_end = (address[chosen] == 0) & (saved == 0)
            nowhere = chosen[(rules.kind.take(found) == LineKind.NO_MAPPING) & ~chain_end]
            self._end[live.owner[nowhere]] = _NO_UNWIND_ROW
            stays[nowhere] = False

    def _caller(
        self,
        live: Live,
        lines: NDArray[np.intp],
        cfa: Ints,
        address: NDArray[np.uint64],
        stays: NDArray[np.bool_],
    ) -> Live:
        place = [self._place(live, lines, cfa, t) for t in range(len(self._tracked))]
        method = self._columns.rules.method.take(lines)
        caller = Live(live.owner, address, cfa, method, live.space_key, live.limit, place)
        if self._columns.rules.names_bytecode:
            self._add_bytecode(live, lines, caller, stays)
        return caller if stays.all() else caller.keep(stays)

    def _add_bytecode(
        self, live: Live, lines: NDArray[np.intp], caller: Live, goes_on: NDArray[np.bool_]
    ) -> None:
        """Frames of the methods that an interpreter ran in `live`, between it and its caller."""
        rules = self._columns.rules
        position = rules.dex_register.take(lines)
        for t, tracked in enumerate(self._tracked):
            chosen = (goes_on & (position == tracked)).nonzero()[0]
            value, known = self._register(live, t, chosen)
            pc = (value + rules.dex_offset.take(lines[chosen])).view(np.uint64)
            if self._mask is not None:
                pc &= self._mask
            chosen, pc = chosen[known & (pc != 0)], pc[known & (pc != 0)]
            if len(chosen):
                self._found.add_bytecode(caller.owner[chosen], pc, caller.sp[chosen])

    def _place(self, live: Live, lines: NDArray[np.intp], cfa: Ints, t: int) -> Ints:
        """Where the t-th tracked register of the caller lies. A slot below sp is dead: see step.py."""
        slot = self._columns.saved[self._tracked[t]].take(lines)
        lost = slot == LOST if self._columns.rules.loses[self._tracked[t]] else None
        slot += cfa
        place = np.where(slot < live.sp, live.place[t], slot)
        outside = slot > live.limit
        if lost is not None:
            outside |= lost
        if self._starts_late:
            outside |= (slot < self._start[live.owner]) & (slot >= live.sp)
        if outside.any():
            place[outside] = UNKNOWN
        return place
