"""Valid locations of an entry probe in A64 code: one small function per rule, in words.

The comment of each instruction is its disassembly.
"""

import numpy as np
import pytest

from memleak_android.host.tracers.probes.arch import ARM64, is_simulated
from memleak_android.host.tracers.probes.placement import SINGLE_STEPPED, jumps_from_outside, place_entry
from memleak_android.unwind.code.disassembly import decode_arm64

BTI_C, PACIASP, SVC, NOP, RET = 0xD503245F, 0xD503233F, 0xD4000001, 0xD503201F, 0xD65F03C0
ADRP_X3, ADRP_X0 = 0x90000003, 0x90000000  # adrp x3, #0
STP_FP_LR = 0xA9BE7BFD  # stp x29, x30, [sp, #-0x20]!
STR_X1 = 0xF9000041  # str x1, [x2]
LDR_X3 = 0xF9400003  # ldr x3, [x0]
LDAR_X3, LDARH_W3, LDAPR_X3, LDAPUR_X3 = (
    0xC8DFFC03,
    0x48DFFC03,
    0xF8BFC003,
    0xD9408003,
)  # of [x0], the last of [x0, #8]
MOV_X19_X0, MOV_X3_X0 = 0xAA0003F3, 0xAA0003E3
LDADD = 0xB8230041  # ldadd w3, w1, [x2]
BR_X17, BR_X3 = 0xD61F0220, 0xD61F0060
ADD_X3 = 0x8B000063  # add x3, x3, x0
UNDECODABLE = 0xFFFFFFFF

X0 = frozenset({"x0"})


def cbz_x0(words: int) -> int:
    return 0xB4000000 | (words & 0x7FFFF) << 5


def b(words: int) -> int:
    return 0x14000000 | words & 0x3FFFFFF


def function(*words: int) -> bytes:
    return np.array(words, "<u4").tobytes()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (b(4), True), (0x94000010, True), (0x54000040, True),  # b, bl, b.eq
        (cbz_x0(2), True), (0x35000040, True), (0x37F80020, True),  # cbz, cbnz, tbnz
        (ADRP_X3, True), (0x10000003, True),  # adrp, adr
        (BR_X17, True), (0xD63F0220, True), (RET, True),
        (0x58000040, False),  # ldr x0, literal: refused since 6.12, and wrong before (probes, acc450aa0709)
        (0xD61F0A3F, False), (0xD65F0BFF, False),  # braaz, retaa
        (NOP, False), (BTI_C, False), (PACIASP, False), (STP_FP_LR, False), (SVC, False),
        (0x54000050, False),  # bc.eq
    ],
)  # fmt: skip
def test_what_the_kernel_simulates(word: int, expected: bool) -> None:
    assert is_simulated(next(decode_arm64(function(word)))) is expected


MOVES = {
    "glibc 2.36 free: cbz, ret": (0, (cbz_x0(3), STP_FP_LR, RET, RET)),
    "glibc 2.41 free: bti, cbz": (4, (BTI_C, cbz_x0(3), STP_FP_LR, RET, RET)),
    "bti, adrp": (4, (BTI_C, ADRP_X3, LDR_X3, RET)),
    "behind free(NULL)'s exit": (8, (NOP, cbz_x0(3), ADRP_X3, RET, RET)),
    "argument copied and loaded through": (8, (MOV_X3_X0, LDR_X3, ADRP_X3, RET)),
    "a tail jump": (4, (BTI_C, b(0x4000))),
    "a tail call through a pointer": (4, (NOP, ADRP_X3, LDR_X3, BR_X3)),
    "bionic 10 malloc: ldar, br": (4, (NOP, ADRP_X3, LDAR_X3, BR_X3)),
    "ldapr, br": (4, (NOP, ADRP_X3, LDAPR_X3, BR_X3)),
    "ldapur, br": (4, (NOP, ADRP_X3, LDAPUR_X3, BR_X3)),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_to(name: str) -> None:
    offset, words = MOVES[name]
    placement = place_entry(ARM64, function(*words), X0, skip_no_op=True)
    assert (placement.offset, placement.cost) == (offset, "simulated"), placement.reason


STAYS = {
    "`paciasp` changes x30": (PACIASP, ADRP_X3, RET),  # a return probe would exchange a signed address
    "`stp x29, x30, [sp, #-0x20]!` changes sp": (STP_FP_LR, ADRP_X3, RET),
    "`mov x19, x0` changes x19": (MOV_X19_X0, ADRP_X3, RET),
    "`mov x0, x17` overwrites the argument in x0": (0xAA1103E0, ADRP_X3, RET),
    "`mov w0, #0` overwrites the argument in x0": (0x52800000, ADRP_X3, RET),
    "`str x1, [x2]` writes memory": (STR_X1, ADRP_X3, RET),
    "`ldadd w3, w1, [x2]` writes memory": (LDADD, ADRP_X3, RET),
    "`svc #0` ends its straight-line entry": (SVC, ADRP_X3, RET),
    "`br x3` at +0xc may go anywhere in it": (NOP, ADRP_X3, ADD_X3, BR_X3, RET),
    "`br x3` at +0x10 may go anywhere in it": (NOP, NOP, ADRP_X3, LDARH_W3, BR_X3, RET),  # no pointer
    "+0x4 is jumped to": (NOP, ADRP_X3, b(-1), RET),
    "+0x8 cannot be decoded": (NOP, ADRP_X3, UNDECODABLE, RET),
    "no instruction in its first 64 bytes is simulated": (NOP,) * 16 + (ADRP_X3, RET),
}


@pytest.mark.parametrize("reason", STAYS)
def test_stays_at_the_entry(reason: str) -> None:
    placement = place_entry(ARM64, function(*STAYS[reason]), X0)
    assert (placement.offset, placement.cost, placement.reason) == (0, SINGLE_STEPPED, reason)


def test_what_an_argument_is_overwritten_by() -> None:
    code = function(NOP, NOP, ADRP_X0, ADRP_X3, RET)
    assert place_entry(ARM64, code, X0).offset == 8  # on it: it has not run yet


@pytest.mark.parametrize(
    ("word", "at", "target"),
    [
        (0x14000000, 0, 204), (0x94000000, 996, 260),  # b, bl
        (0x54000001, 400, 204), (0xB4000000, 400, 208), (0x37000000, 150 & ~3, 204),  # b.ne, cbz, tbnz
        (0x54000001, 1_000_000, 204), (0xB4000000, 1_000_000, 208), (0x37000000, 32_000, 204),  # as far as they reach
        (0x14000000, 100_000_000, 204),
    ],
)  # fmt: skip
def test_jumps_into_the_entry_are_found(word: int, at: int, target: int) -> None:
    text = np.full(at // 4 + 250, NOP, "<u4")
    words = (target - at) // 4
    shift, width = (
        (0, 26) if word & 0x7C000000 == 0x14000000 else (5, 14 if word & 0x7E000000 == 0x36000000 else 19)
    )
    text[at // 4] = word | (words & (1 << width) - 1) << shift
    raw = text.view(np.uint8)
    assert jumps_from_outside(ARM64, raw, [(200, 280)]) == [{target - 200}]
    assert jumps_from_outside(ARM64, raw, [(target, target + 60)]) == [set()]  # to the entry itself: no harm
