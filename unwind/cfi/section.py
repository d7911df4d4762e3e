"""CIEs, FDEs and their indexes in .eh_frame and .debug_frame (DWARF 5 §6.4.1, LSB 5.0 §10.6)."""

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind.cfi.engine_rows import walk_entries
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.reader import (
    DW_EH_PE_INDIRECT,
    DW_EH_PE_OMIT,
    FIXED_FORMS,
    U32,
    U64,
    PointerBases,
    read_number,
    read_pointer,
    read_sleb,
    read_uleb,
)
from memleak_android.unwind.trace import Method

_PCREL = 0x10
_WIDE = 0xFFFFFFFF  # not a length: a 64-bit one follows (DWARF 5 §7.4)
_VECTOR_MIN = 16  # FDEs of one CIE; fewer are read one by one
_TWO_WORDS = struct.Struct("<II")
_ENTRIES_MAX = 1 << 22  # of a walk through a section; the largest programs have a million FDEs
_VADDR_END = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Cie:
    """A CIE: the part that several FDEs share. program: (start, end) of the initial instructions in the section."""

    code_align: int
    data_align: int
    return_register: int
    pointer_encoding: int
    has_augmentation_data: bool
    is_signal: bool
    word_bytes: int
    segment_bytes: int
    program: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fde:
    """The CFI of one function: vaddrs [start, end). program: (start, end) in the section."""

    start: int
    end: int
    cie: Cie
    program: tuple[int, int]


@dataclass(frozen=True, slots=True)
class FdeIndex:
    """FDEs by function start: sorted vaddrs and the section offsets of their FDEs."""

    starts: NDArray[np.uint64]
    offsets: NDArray[np.int64]


class Entries(NamedTuple):
    """FDEs as columns, sorted by start: vaddrs, bytes of code, section offsets, and those of their CIEs."""

    starts: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    cies: NDArray[np.int64]


def groups(keys: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(key, its positions) for each distinct key; keys are not negative."""
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order], prepend=-1, append=-1))
    for first, last in itertools.pairwise(bounds.tolist()):
        yield int(keys[order[first]]), order[first:last]


@dataclass(slots=True)
class CfiSection:
    """One .eh_frame or .debug_frame.

    data: its bytes. vaddr: their address. method: recorded in the frames found by it. text, base:
    vaddrs that textrel and datarel pointers add. is_eh: .eh_frame, which encodes CIE references differently.
    read_word: the pointer at a vaddr, for indirect encodings.
    """

    data: bytes
    vaddr: int
    method: Method
    word_bytes: int
    text: int = 0
    base: int = 0
    is_eh: bool = True
    read_word: Callable[[int], int | None] = lambda vaddr: None
    _cies: dict[int, Cie] = field(default_factory=dict)

    def fde(self, offset: int) -> Fde:
        """The FDE at a section offset. Raises BadCfiError."""
        at, end, cie_offset = self._entry(offset)
        if cie_offset is None:
            raise BadCfiError("a CIE where an FDE should be", offset)
        cie = self.cie(cie_offset)
        bases = PointerBases(self.vaddr, cie.word_bytes, self.text, self.base)
        at += cie.segment_bytes
        start, at = read_pointer(self.data, at, cie.pointer_encoding & ~DW_EH_PE_INDIRECT, bases)
        if cie.pointer_encoding & DW_EH_PE_INDIRECT:
            start = self._pointed_at(start)
        length, at = read_pointer(self.data, at, cie.pointer_encoding & 0x0F, bases)
        if cie.has_augmentation_data:
            size, at = read_uleb(self.data, at)
            at += size
        if at > end:
            raise BadCfiError("an FDE that is longer than its length", offset)
        return Fde(start, min(start + length, _VADDR_END), cie, (at, end))

    def _pointed_at(self, vaddr: int) -> int:
        value = self.read_word(vaddr)
        if value is None:
            raise BadCfiError("an indirect pointer to nowhere", vaddr)
        return value

    def entries(self) -> Entries:
        """Every FDE, found by walking the section from its start; what is malformed is left out."""
        offsets, cies = self._fde_offsets()
        starts, lengths = np.zeros(len(offsets), np.uint64), np.zeros(len(offsets), np.uint64)
        for cie_offset, members in groups(cies):
            starts[members], lengths[members] = self.ranges_of(offsets[members], cie_offset)
        order = np.lexsort((offsets, starts))
        order = order[(starts[order] != 0) & (lengths[order] != 0)]
        return Entries(starts[order], lengths[order], offsets[order], cies[order])

    def scan(self) -> FdeIndex:
        """The index of all entries()."""
        found = self.entries()
        return FdeIndex(found.starts, found.offsets)

    def ranges_of(
        self, offsets: NDArray[np.int64], cie_offset: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """(start, length) of FDEs of one CIE; (0, 0) for malformed ones."""
        none = np.zeros(len(offsets), np.uint64)
        try:
            cie = self.cie(cie_offset)
        except BadCfiError:
            return none, none
        layout = self._plain_layout(offsets, cie)
        if layout is None:
            pairs = [self._range_of(offset) for offset in offsets.tolist()]
            columns = np.array(pairs, np.uint64).reshape(-1, 2)
            return columns[:, 0], columns[:, 1]
        image = np.frombuffer(self.data, np.uint8)
        size = np.dtype(layout).itemsize
        at = offsets + 8 + cie.segment_bytes
        fits = at + 2 * size <= len(self.data)
        window = np.where(fits, at, 0)[:, None] + np.arange(2 * size)
        fields = image[window].view(layout).astype(np.int64)
        vaddr = at.view(np.uint64) + np.uint64(self.vaddr)
        starts = fields[:, 0] + (vaddr.view(np.int64) if cie.pointer_encoding & _PCREL else 0)
        lengths = fields[:, 1]
        if cie.word_bytes == 4:
            starts, lengths = starts & 0xFFFFFFFF, lengths & 0xFFFFFFFF
        return np.where(fits, starts, 0).view(np.uint64), np.where(fits, lengths, 0).view(np.uint64)

    def programs(
        self, offsets: NDArray[np.int64], cie: Cie
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """(start, end, is good) of the instructions of FDEs of one CIE."""
        layout = self._plain_layout(offsets, cie)
        if layout is None:
            return self._programs_one_by_one(offsets)
        image = np.frombuffer(self.data, np.uint8)
        length = image[offsets[:, None] + np.arange(4)].view("<u4")[:, 0].astype(np.int64)
        at, end = offsets + 8 + cie.segment_bytes + 2 * np.dtype(layout).itemsize, offsets + 4 + length
        is_good = (end <= len(image)) & (at <= end)
        if cie.has_augmentation_data:
            is_good &= at < end
            size = image[np.where(is_good, at, 0)].astype(np.int64)
            is_good &= size < 128  # one byte of LEB128
            at = at + 1 + size
        return at, end, is_good & (at <= end)

    def _programs_one_by_one(
        self, offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        found = []
        for offset in offsets.tolist():
            try:
                found.append((*self.fde(offset).program, 1))
            except BadCfiError:
                found.append((0, 0, 0))
        at, end, is_good = np.array(found, np.int64).reshape(-1, 3).T
        return at, end, is_good != 0

    def _plain_layout(self, offsets: NDArray[np.int64], cie: Cie) -> str | None:
        """The NumPy type of both addresses of these FDEs, where they can be read as arrays; all are 32-bit DWARF."""
        form, application = cie.pointer_encoding & 0x0F, cie.pointer_encoding & 0xF0
        dtype = FIXED_FORMS.get(form or (0x04 if cie.word_bytes == 8 else 0x03))
        if dtype is None or application not in (0, _PCREL) or len(offsets) < _VECTOR_MIN:
            return None
        image = np.frombuffer(self.data, np.uint8)
        is_wide = (image[offsets[:, None] + np.arange(4)] == 0xFF).all(1).any()
        return None if is_wide or len(image) < 16 else dtype

    def _range_of(self, offset: int) -> tuple[int, int]:
        try:
            fde = self.fde(offset)
        except BadCfiError:
            return 0, 0
        return fde.start, fde.end - fde.start

    def _fde_offsets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(offsets of FDEs, offsets of their CIEs): a walk from entry to entry, of _ENTRIES_MAX at most."""
        data, size, is_eh, head = self.data, len(self.data), self.is_eh, _TWO_WORDS.unpack_from
        first_offsets, first_cies, at = walk_entries(self.data, self.is_eh, _ENTRIES_MAX)
        offsets: list[int] = []
        cies: list[int] = []
        for _ in range(_ENTRIES_MAX - len(first_offsets)):
            if at + 8 > size:
                break
            length, cie_id = head(data, at)
            end = at + 4 + length
            if length == 0:
                if is_eh:
                    break  # the terminator (LSB 5.0 §10.6.1); what follows may be no CFI
                end, cie_offset = at + 4, None
            elif length == _WIDE:
                try:
                    _, end, cie_offset = self._entry(at)
                except BadCfiError:
                    break
            elif end > size:
                break
            elif is_eh:
                cie_offset = at + 4 - cie_id if cie_id else None
            else:
                cie_offset = cie_id if cie_id != _WIDE else None
            if cie_offset is not None and 0 <= cie_offset < size:
                offsets.append(at)
                cies.append(cie_offset)
            at = end
        return (
            np.concatenate([first_offsets, np.array(offsets, np.int64)]),
            np.concatenate([first_cies, np.array(cies, np.int64)]),
        )

    def _entry(self, offset: int) -> tuple[int, int, int | None]:
        """(offset after the CIE pointer, end, offset of the CIE or None for a CIE or terminator)."""
        if not 0 <= offset < len(self.data):
            raise BadCfiError("an entry outside the section", offset)
        length, at = read_number(self.data, offset, U32)
        wide = length == 0xFFFFFFFF
        if wide:
            length, at = read_number(self.data, at, U64)
        end = at + length
        if end > len(self.data):
            raise BadCfiError("an entry that reaches past the section", offset)
        if length == 0:
            return at, at, None
        id_at = at
        wide_id = wide and not self.is_eh
        cie_id, at = read_number(self.data, at, U64 if wide_id else U32)
        if self.is_eh:
            cie_offset = None if cie_id == 0 else id_at - cie_id
            if wide and self._has_wide_id(offset if cie_offset is None else cie_offset):
                at += 4
            return at, end, cie_offset
        return at, end, None if cie_id == (0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF) else cie_id

    def _has_wide_id(self, cie_offset: int) -> bool:
        """LSB 5.0 keeps the CIE id of 64-bit entries at 4 bytes, some writers use 8. Seen at the version."""
        version = cie_offset + 16
        return 0 <= version < len(self.data) and self.data[version] == 0

    def cie(self, offset: int) -> Cie:
        """The CIE at a section offset. Raises BadCfiError."""
        cie = self._cies.get(offset)
        if cie is None:
            cie = self._cies[offset] = self._parse_cie(offset)
        return cie

    def _parse_cie(self, offset: int) -> Cie:
        at, end, cie_offset = self._entry(offset)
        if cie_offset is not None or at >= end:
            raise BadCfiError("an FDE that names no CIE", offset)
        version = self.data[at]
        if version not in (1, 3, 4, 5):
            raise BadCfiError(f"unknown CIE version {version}", offset)
        zero = self.data.find(b"\0", at + 1, end)
        if zero < 0:
            raise BadCfiError("an augmentation string that does not end", offset)
        augmentation = self.data[at + 1 : zero]
        at = zero + 1
        word_bytes, segment_bytes = self.word_bytes, 0
        if augmentation.startswith(b"eh"):  # GCC 2: a pointer to its exception table
            at += word_bytes
        if version >= 4:
            if end - at < 2 or self.data[at] not in (4, 8):
                raise BadCfiError("an unusable address size", offset)
            word_bytes, segment_bytes = self.data[at], self.data[at + 1]
            at += 2
        code_align, at = read_uleb(self.data, at)
        data_align, at = read_sleb(self.data, at)
        if version == 1:
            return_register, at = self.data[at] if at < end else -1, at + 1
        else:
            return_register, at = read_uleb(self.data, at)
        encoding, is_signal = 0, False
        if augmentation.startswith(b"z"):
            size, at = read_uleb(self.data, at)
            encoding, is_signal = self._augmentation(augmentation[1:], at, word_bytes)
            at += size
        if at > end:
            raise BadCfiError("a CIE that is longer than its length", offset)
        has_data = augmentation.startswith(b"z")
        return Cie(
            code_align,
            data_align,
            return_register,
            encoding,
            has_data,
            is_signal,
            word_bytes,
            segment_bytes,
            (at, end),
        )

    def _augmentation(self, letters: bytes, at: int, word_bytes: int) -> tuple[int, bool]:
        """(pointer encoding of the FDEs, is a signal frame). Letters that are not known end the reading."""
        encoding, is_signal = 0, False
        for letter in letters:
            if letter in b"RLP":
                if at >= len(self.data):
                    raise BadCfiError("augmentation data that ends too early", at)
                value = self.data[at]
                at += 1
            if letter == ord("R"):
                encoding = value
            elif letter == ord("P"):
                if value != DW_EH_PE_OMIT:
                    bases = PointerBases(self.vaddr, word_bytes)
                    _, at = read_pointer(self.data, at, value & ~DW_EH_PE_INDIRECT, bases)
            elif letter == ord("S"):
                is_signal = True
            elif letter not in b"LBG":  # B, G: arm64 return-address key, tagged frame; no data
                break
        return encoding, is_signal
