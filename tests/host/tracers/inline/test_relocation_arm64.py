"""Moved A64 code does what it did: run by Unicorn, unmoved and moved, from equal registers and memory.

Each form that depends on the pc, near (one instruction moves) and far (four); prologues from random words.
"""

import random

import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.inline.relocation import Surroundings
from memleak_android.unwind.code.disassembly import decode_arm64
from tests.support.moved import arm64 as moved

NOP = 0xD503201F
PACIASP, BTI_C, BTI_JC = 0xD503233F, 0xD503245F, 0xD50324DF
GUARDED, SHADOWED = Surroundings(has_guarded_calls=True), Surroundings(has_shadow_stack=True)
_PAGE_OF_TRAPS = 0x4000  # from the function on

# Each with its displacement in bytes to a page of traps, or to any word around.
FORMS = {
    "adr x3": 0x10000003 | (0x1234 >> 2) << 5 | 0 << 29,
    "adr x29, -1 MiB": 0x1000001D | 0x40000 << 5,
    "adr xzr": 0x1000001F | 0x400 << 5,
    "adrp x8": 0x90000008 | 0x12345 << 5,
    "adrp x0, -4 GiB": 0x90000000 | 0x40000 << 5,
    **{
        f"{name} {register}, {displacement:+#x}": top << 24 | (displacement // 4 & 0x7FFFF) << 5 | register
        for name, top in {
            "ldr w": 0x18, "ldr x": 0x58, "ldrsw": 0x98, "prfm": 0xD8, "ldr s": 0x1C, "ldr d": 0x5C, "ldr q": 0x9C,
        }.items()
        for register in (0, 9, 30, 31)
        for displacement in (0x3000, -0xFF000)
    },
    "b": 0x14000000 | _PAGE_OF_TRAPS // 4,
    "bl": 0x94000000 | _PAGE_OF_TRAPS // 4,
    **{f"b.{condition}": 0x54000000 | _PAGE_OF_TRAPS // 4 << 5 | condition for condition in range(16)},
    **{
        f"cb{'n' if not_zero else ''}z {'xw'[is_word]}{register}": 0x34000000 | (not is_word) << 31
        | not_zero << 24 | _PAGE_OF_TRAPS // 4 << 5 | register
        for not_zero in (0, 1) for is_word in (0, 1) for register in (0, 30, 31)
    },
    **{
        f"tb{'n' if not_zero else ''}z x{register}, #{bit}": 0x36000000 | bit >> 5 << 31 | not_zero << 24
        | (bit & 31) << 19 | _PAGE_OF_TRAPS // 4 << 5 | register
        for not_zero in (0, 1) for bit in (0, 3, 63) for register in (0, 31)
    },
    "blr x9": 0xD63F0120, "blr x30": 0xD63F03C0, "ret": 0xD65F03C0,
    "paciasp": PACIASP, "bti c": BTI_C, "xpaclri": 0xD50320FF,
    "stp x29, x30, [sp, #-64]!": 0xA9BC7BFD, "sub sp, sp, #0x40": 0xD10103FF, "mov x29, sp": 0x910003FD,
    "mrs x8, tpidr_el0": 0xD53BD048, "cas": 0xC8A17C62, "ldp q0, q1": 0xAD400440,
}  # fmt: skip
_LAST_ONLY = ("b", "bl", "blr x9", "blr x30", "ret")
REFUSED = {
    "brk": (0xD4200000, "a breakpoint or a trap"),
    "udf": (0x00000001, "a breakpoint or a trap"),
    "svc": (0xD4000001, "not known to move"),
    "blraaz": (0xD63F093F, "not known to move"),
    "bc.eq (FEAT_HBC)": (0x54000410, "not known to move"),
    "pacm": (0xD50324FF, "not known to move"),
    "ldxr": (0xC85F7C20, "a load or store with a monitor"),
    "stlxr": (0xC803FC20, "a load or store with a monitor"),
    "reads the patch": (0x58000000, "refers to where the patch is"),
    "reads the patch from before": (0x58FFFFE0, "refers to where the patch is"),
    "back to its start": (0x54000000, "jumps back to its start"),
    "x16 at the entry": (0xAA1003E0, "reads x16 at its entry"),
}


def far(word: int, index: int) -> list[int]:
    return [word if i == index else NOP for i in range(6)]


def test_every_form_does_the_same_moved() -> None:
    """By turns near, where it is the first, and far twice."""
    prologues = []
    for name, word in FORMS.items():
        index = 3 if name in _LAST_ONLY else 1
        prologues += [far(word, 0), far(word, index), far(word, index)]
    tried = moved.try_prologues(prologues, seed=1)
    assert tried.differences == [] and tried.refused == {} and tried.improper == 0
    assert tried.moved == 3 * len(FORMS)
    assert tried.faults < tried.moved / 5


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str) -> None:
    word, reason = REFUSED[case]
    with pytest.raises(TargetError, match=r"^f cannot be patched: ") as refusal:
        moved.plan_moved(far(word, 0), moved.NEAR)
    assert reason in refusal.value.message


# No disassembler need know them: encodings that sign or branch with the pc (Arm ARM, FEAT_PAuth_LR, FEAT_CMPBR).
@pytest.mark.parametrize("word", [0xDAC1A3FE, 0xDAC183FE, 0xF3800FFE, 0x5500001F, 0x74000040])
def test_what_later_architectures_make_depend_on_the_pc_is_refused(word: int) -> None:
    with pytest.raises(TargetError, match=r"^f cannot be patched: "):
        moved.plan_moved(far(word, 0), moved.NEAR)


def test_a_landing_pad_stays_the_first_instruction() -> None:
    for pad in (BTI_C, BTI_JC):
        plan = moved.plan_moved([pad, NOP, NOP, NOP, NOP, NOP], moved.FAR)
        assert plan.address == moved.FUNCTION + 4
    plan = moved.plan_moved([PACIASP, *[NOP] * 5], moved.FAR, GUARDED)
    assert plan.address == moved.FUNCTION + 4 and BTI_C.to_bytes(4, "little") not in plan.patch


# Words before the jump, kept because other tracers' uprobes are set there, and their number.
STP, LDR_POST_INDEX = 0xA9BC7BFD, 0xF8408408
KEPT = {
    "stp": ([STP], 1),
    "str": ([0xF81F0FFE], 1),
    "sub sp": ([0xD10103FF], 1),
    "paciasp": ([PACIASP, STP], 1),
    "behind the landing pad": ([BTI_C, STP], 2),
    "adrp of a free register": ([0x90000008], 1),
    "cmp": ([0xEB01001F], 1),
    "writes an argument": ([0xF9400020], 0),
    "writes its address back": ([LDR_POST_INDEX], 0),
    "not the stack's": ([0xA9BC7C1D], 0),
    "above the stack pointer": ([0xA9847BFD], 0),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_can_be_undone_stays(case: str) -> None:
    words, n_kept = KEPT[case]
    for trampoline in (moved.NEAR, moved.FAR):
        plan = moved.plan_moved([*words, *[NOP] * (6 - len(words))], trampoline)
        assert len(plan.kept) == 4 * n_kept
        assert plan.address == moved.FUNCTION + len(plan.kept)


def test_the_moved_code_begins_with_a_landing_pad_and_far_returns_need_none() -> None:
    plan = moved.plan_moved([NOP] * 6, moved.FAR, GUARDED)
    code = [str(one) for one in decode_arm64(plan.trampoline[16:], plan.original)]
    assert code[0] == "bti c"
    assert "ret x17" in code and "br x17" not in code


def test_calls_are_not_moved_under_a_shadow_stack() -> None:
    for name in ("bl", "blr x9"):
        with pytest.raises(TargetError, match="calls cannot be moved under a shadow stack"):
            moved.plan_moved(far(FORMS[name], 3), moved.FAR, SHADOWED)


def test_random_prologues_do_the_same_moved() -> None:
    _check_random(seed=2, count=400)


@pytest.mark.proof
@pytest.mark.timeout(1800)  # some minutes of processor time, and the machine may be busy
def test_a_hundred_thousand_random_prologues() -> None:
    _check_random(seed=3, count=100_000)


def _check_random(*, seed: int, count: int) -> None:
    rng = random.Random(seed)
    tried = moved.try_prologues((moved.random_prologue(rng) for _ in range(count)), seed)
    assert tried.differences == []
    assert tried.moved + sum(tried.refused.values()) == count
    assert tried.moved > count / 2, tried.refused.most_common(5)
    assert tried.faults < 0.6 * tried.moved and tried.improper < 0.01 * tried.moved
