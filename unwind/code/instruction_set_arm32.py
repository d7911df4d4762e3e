"""Detects the instruction set of arm32 code (A32 or T32), which files without symbols do not record."""

import re
from collections import Counter
from collections.abc import Callable

ReadCode = Callable[[int, int], bytes]
_WORDS_AROUND = 24  # to either side of the address
_A32_SHARE = 0.4  # of words that look like A32; misclassifies 3 % of glibc's A32 and 0.02 % of its T32 code
_WORDS_NEAR = 6
_NEAR_ALWAYS, _NEAR_SHARE = 0.15, 0.92  # misclassifies 0.11 % of glibc's T32 code
_A32_TOP = frozenset([*range(0xE0, 0xF0), *range(0xF2, 0xF6)])
# add ip, pc, …; add ip, ip, …; ldr pc, [ip, …]! or what is left of it
_PLT_ENTRY = re.compile(rb"(?:.[\xc0-\xcf][\x8c\x8f]\xe2){0,2}.[\xf0-\xff]\xbc\xe5", re.DOTALL)


def is_arm(read: ReadCode, vaddr: int) -> bool:
    """Whether the code is A32: most words have the condition `always` or are vector instructions (A5.1, A7.4),
    and their lower halfword does not begin a wide T32 instruction (A6.1)."""
    if vaddr & 2:
        return False
    start = vaddr & ~3
    if _PLT_ENTRY.match(read(start, 12)):
        return True  # among T32 entries (`bx pc; nop`)
    code = read(start - 4 * _WORDS_AROUND, 4 * _WORDS_AROUND) + read(start, 4 * _WORDS_AROUND)
    matches = sum(top in _A32_TOP and low < 0xE8 for top, low in zip(code[3::4], code[1::4], strict=False))
    return matches > _A32_SHARE * (len(code) // 4)


def may_be_arm(read: ReadCode, vaddr: int) -> bool:
    """Whether code looks like conditional A32 with a single condition besides `always` (glibc's memset)."""
    if vaddr & 2:
        return False
    size = 4 * _WORDS_NEAR
    around = read(vaddr - 2 * size, 2 * size) + read(vaddr, 2 * size)
    return any(_is_conditional(around[at : at + 2 * size]) for at in range(0, len(around) - size, size))


def _is_conditional(code: bytes) -> bool:
    conditions = Counter(top >> 4 for top in code[3::4])
    always = conditions.pop(14, 0)
    other = max(conditions.values(), default=0)
    words = len(code) // 4
    return always > _NEAR_ALWAYS * words and always + other > _NEAR_SHARE * words
