"""Moved x86-64 code does what it did: run natively, unmoved and moved, from equal registers and memory.

Each form that depends on the pc, once with the trampoline in reach of 32 bits and once not; prologues from random bytes.
"""

import random
from pathlib import Path

import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.binaries import local_arch
from tests.support.moved import x86_64 as moved

pytestmark = pytest.mark.skipif(local_arch() != "x86_64", reason="x86-64 code is run natively")

FILL = "909090909090909090909090909090"
_TO_DATA = (
    (moved.DATA + 0x100 - moved.FUNCTION).to_bytes(4, "little").hex()
)  # to near the data, plus what it ends

ENDS = {
    "jmp rel8": "eb40",
    "jmp rel32": "e900100000",
    "call rel32": "e800100000",
    "jmp [rax]": "ff20",
    "ret": "c3",
}
FORMS = {
    "push rbp; mov rbp, rsp; push r15 r14 r13 r12": "554889e5415741564155415453",
    "endbr64; push rbx; sub rsp, 0x10": "f30f1efa534883ec10",
    **{f"j{condition:x} rel8": f"{0x70 | condition:02x}40" for condition in range(16)},
    **{f"j{condition:x} rel32": f"0f{0x80 | condition:02x}00100000" for condition in range(16)},
    "loopne": "e040", "loope": "e140", "loop": "e240", "jrcxz": "e340",
    "lea r9, [rip+d]": "4c8d0d" + _TO_DATA,
    **{f"{name} after nine bytes": "90" * 9 + code for name, code in ENDS.items() if len(code) == 10},
    "jmp [rax] after twelve bytes": "90" * 12 + "ff20",
    "push [rax+8]": "ff7008",
    "mov rax, imm64": "48b8efcdab8967452301",
}  # fmt: skip
NEAR_ONLY = {
    **{name: "90" * (5 - len(code) // 2) + code for name, code in ENDS.items()},
    "mov r8, [rip+d]": "4c8b05" + _TO_DATA,
    "mov rax, [rip+d]": "488b05" + _TO_DATA,
    "cmp byte [rip+d], 0": "803d" + _TO_DATA + "00",
    "mov eax, [rip+d]": "8b05" + _TO_DATA,
    "mov [rip+d], rax": "488905" + _TO_DATA,
    "movaps xmm1, [rip+d]": "0f280d" + _TO_DATA,
    "vmovups ymm1, [rip+d]": "c5fc100d" + _TO_DATA,
    "add dword [rip+d], imm32": "8105" + _TO_DATA + "78563412",
    "add word [rip+d], imm16": "668105" + _TO_DATA + "7856",
    "test dword [rip+d], imm32": "f705" + _TO_DATA + "78563412",
    "cvtsi2sd xmm0, [rip+d]": "f2480f2a05" + _TO_DATA,
    "push [rip+d]": "ff35" + _TO_DATA,
    "lock xadd [rip+d], rax": "f0480fc105" + _TO_DATA,
}
REFUSED = {
    "syscall": ("0f05", "is not known to move"),
    "int3": ("90cc", "int3"),
    "ud2": ("0f0b", "a breakpoint or a trap"),
    "hlt": ("f4", "a breakpoint or a trap"),
    "call rax": ("ffd0909090", "`call rax` comes before the end of what must be moved"),
    "call [rip+d]": ("ff1500000100", "is not known to move"),
    "xbegin": ("c7f800010000", "is not known to move"),
    "fnstenv": ("d930", "is not known to move"),
    "EVEX": ("62f17c48100500010000", "is not known to move"),
    "mov eax, [eip+d]": ("678b0500010000", "is not known to move"),
    "jmp with an operand-size prefix": ("9066e90000000190", "jmp"),
    "ret before the end": ("c3", "comes before the end of what must be moved"),
    "back to the start": ("9090ebfc", "jumps back to its start"),
    "into the patch from behind": ("909090909090ebfb", "jumps back to its start"),
    "reads the patch": ("488b05f9ffffff", "refers to where the patch is"),
    "reads the patch from behind": ("9090909090488b05f6ffffff", "refers to where the patch is"),
    "points into the patch": ("488d05fcffffff", "refers to where the patch is"),
    "a switch": ("9090909090ffe0", "may go anywhere in it"),
}

HARMFUL = {
    "pop fs (0)": "6a000fa1",
    "exit(): syscall": "31c0b03c0f05",
    "pause(): syscall": "31c0b0220f05",
    "for ever": "ebfe",
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moved.build_runner(tmp_path_factory.mktemp("runner"))


def test_every_form_does_the_same_moved(runner: Path) -> None:
    codes = [bytes.fromhex(code + FILL) for code in (FORMS | NEAR_ONLY).values()]
    both = [code for code in codes for _ in range(4)]  # in reach, out of reach, by turns
    tried = moved.try_prologues(runner, both, seed=1)
    assert tried.differences == []
    assert tried.moved == 2 * (2 * len(FORMS) + len(NEAR_ONLY))
    assert tried.faults < tried.moved / 4


# Bytes before the jump, kept because other tracers' uprobes are set there.
KEPT = {
    "push": ("4154" + "5553", "4154"),
    "up to the probe's offset": ("4889f8" + "4154" + "55", "4889f84154"),
    "sub rsp": ("4881ec00010000" + "48893c24", "4881ec00010000"),
    "comparison": ("4885ff" + "4889f8", "4885ff"),
    "behind the landing pad": ("f30f1efa" + "55" + "4889e5", "f30f1efa55"),
    "writes an argument": ("4889f7" + "4889f8", ""),
    "reads what it writes": ("4801f8" + "4801f0", ""),
    "pushes two bytes": ("6650" + "4889f8", ""),
    "writes memory": ("48893e" + "4889f8", ""),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_can_be_undone_stays(case: str) -> None:
    code, kept = KEPT[case]
    for trampoline in (moved.NEAR, moved.FAR):
        plan = moved.plan_moved(bytes.fromhex(code) + b"\x90" * 24, trampoline)
        assert plan.kept == bytes.fromhex(kept)
        assert plan.address == moved.FUNCTION + len(plan.kept)


@pytest.mark.parametrize("form", sorted(NEAR_ONLY.keys() - ENDS.keys()))
def test_what_can_only_be_corrected_is_refused_out_of_reach(form: str) -> None:
    with pytest.raises(TargetError, match="is out of reach from"):
        moved.plan_moved(bytes.fromhex(NEAR_ONLY[form] + FILL), moved.FAR)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str) -> None:
    code, reason = REFUSED[case]
    with pytest.raises(TargetError, match="f cannot be patched: ") as refusal:
        moved.plan_moved(bytes.fromhex(code + FILL), moved.NEAR)
    assert reason in refusal.value.message


def test_no_case_harms_the_run(runner: Path) -> None:
    """Code behind what is moved may be anything: here it takes the thread's storage away, ends or stops the process."""
    codes = [bytes.fromhex("90" * 16 + code).ljust(32, b"\xcc") for code in HARMFUL.values()]
    tried = moved.try_prologues(runner, codes * 4, seed=5)
    assert tried.differences == []
    assert tried.moved == 4 * len(HARMFUL) and tried.died == 4 * sum("syscall" in name for name in HARMFUL)


def test_random_prologues_do_the_same_moved(runner: Path) -> None:
    _check_random(runner, seed=2, count=600)


@pytest.mark.proof
@pytest.mark.timeout(1800)  # some minutes of processor time, and the machine may be busy
def test_a_hundred_thousand_random_prologues(runner: Path) -> None:
    _check_random(runner, seed=3, count=100_000)


def _check_random(runner: Path, *, seed: int, count: int) -> None:
    rng = random.Random(seed)
    tried = moved.try_prologues(runner, (moved.random_prologue(rng) for _ in range(count)), seed)
    assert tried.differences == []
    assert tried.moved > count / 3, tried.refused.most_common(5)
    assert tried.faults < 0.6 * tried.moved and tried.died <= 0.001 * tried.moved
    assert tried.moved + sum(tried.refused.values()) == count
