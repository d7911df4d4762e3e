"""A64 prologues run by Unicorn (QEMU's CPU), unmoved and moved, from equal registers and memory."""

import random
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.inline.patch_plan import FunctionCode, PatchPlan
from memleak_android.host.tracers.inline.relocation import UNGUARDED, Surroundings
from memleak_android.unwind.code.disassembly import Flow, decode_arm64
from memleak_android.unwind.elf_headers import EM_AARCH64
from tests.support.moved.code import Tried, plan_straight

unicorn = pytest.importorskip("unicorn", reason="unicorn, which runs arm64 code, is not installed")
from unicorn import arm64_const as arm64

FUNCTION = 0x1010_0000
CODE, CODE_BYTES = 0x1000_0000, 0x20_0000  # ±1 MiB around the function: as far as literals and b.cond reach
DATA, DATA_BYTES = 0x2000_0000, 0x4000
NEAR, FAR = 0x1400_0000, 0x70_0000_0000
_TRAMPOLINE_BYTES = 0x1000
BRK = 0xD4200000
_PROLOGUE_WORDS = 6
_FUNCTION_BYTES = 64
_STEPS_MAX = 300
_READ_WRITE = unicorn.UC_PROT_READ | unicorn.UC_PROT_WRITE
_READ_EXECUTE = unicorn.UC_PROT_READ | unicorn.UC_PROT_EXEC
_BREAKPOINT = 7  # QEMU's EXCP_BKPT

_X0_TO_X28 = range(arm64.UC_ARM64_REG_X0, arm64.UC_ARM64_REG_X28 + 1)
_GENERAL = [*_X0_TO_X28, arm64.UC_ARM64_REG_X29, arm64.UC_ARM64_REG_X30]
_VECTORS = list(range(arm64.UC_ARM64_REG_Q0, arm64.UC_ARM64_REG_Q31 + 1))
_SP, _NZCV, _PC = arm64.UC_ARM64_REG_SP, arm64.UC_ARM64_REG_NZCV, arm64.UC_ARM64_REG_PC
# what would end or change the machine, and what is not the same twice
_HARMFUL = re.compile(
    r"^(svc|hvc|smc|msr|mrs|sys|sysl|dc|ic|at|tlbi|wf[ei]|wf[ei]t|eret\w*|dcps\d|hlt|drps|cfp|dvp|cpp)\b"
)


@dataclass(frozen=True)
class Outcome:
    """kind: of the exception that ended it; 0 = too many steps. general: x0 … x30, sp."""

    kind: int
    pc: int
    general: tuple[int, ...]
    flags: int
    vectors: tuple[int, ...]
    data: bytes


class Machine:
    """Pages of traps (for branches) and of undefined instructions (for literals) by turns around the function."""

    def __init__(self) -> None:
        self.cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, arm64.UC_CPU_ARM64_MAX)
        self.cpu.mem_map(DATA, DATA_BYTES, _READ_WRITE)
        for address, size in ((CODE, CODE_BYTES), (NEAR, _TRAMPOLINE_BYTES), (FAR, _TRAMPOLINE_BYTES)):
            self.cpu.mem_map(address, size, _READ_EXECUTE)
        rng = random.Random(7)
        traps = struct.pack("<I", BRK) * 1024
        for page in range(0, CODE_BYTES, 8192):
            undefined = struct.pack("<1024I", *(rng.getrandbits(16) for _ in range(1024)))  # udf
            self.cpu.mem_write(CODE + page, traps + undefined)
        self.cpu.reg_write(arm64.UC_ARM64_REG_CPACR_EL1, 3 << 20)
        self.cpu.hook_add(unicorn.UC_HOOK_INTR, self._on_exception)
        self._kind = 0

    def _on_exception(self, cpu: Any, number: int, _: object) -> None:
        self._kind = number
        cpu.emu_stop()

    def write_code(self, address: int, code: bytes) -> None:
        self.cpu.mem_write(address, code)
        self.cpu.ctl_remove_cache(address, address + len(code))

    def run(self, start: int, seed: int) -> Outcome:
        state = random.Random(seed)
        self.cpu.mem_write(DATA, state.randbytes(DATA_BYTES))
        pointers = [DATA + 16 * state.randrange(64, DATA_BYTES // 16 - 64) for _ in range(32)]
        values = [
            one if state.random() < 0.8 else state.getrandbits(state.choice((2, 64))) for one in pointers
        ]
        self.cpu.reg_write_batch([*zip(_GENERAL, values[:31], strict=True), (_SP, pointers[31])])
        self.cpu.reg_write_batch([(one, state.getrandbits(128)) for one in _VECTORS])
        self.cpu.reg_write(_NZCV, state.getrandbits(4) << 28)
        self._kind = 0
        try:
            self.cpu.emu_start(start, 0, count=_STEPS_MAX)
        except unicorn.UcError as error:
            self._kind = 1000 + error.errno
        general = self.cpu.reg_read_batch([*_GENERAL, _SP])
        return Outcome(
            self._kind,
            self.cpu.reg_read(_PC),
            tuple(general),
            self.cpu.reg_read(_NZCV),
            tuple(self.cpu.reg_read_batch(_VECTORS)),
            bytes(self.cpu.mem_read(DATA, DATA_BYTES)),
        )


def plan_moved(words: Iterable[int], trampoline: int, surroundings: Surroundings = UNGUARDED) -> PatchPlan:
    """A patch that leads straight to the moved instructions."""
    code = _image(words)
    function = FunctionCode("f", EM_AARCH64, FUNCTION, code, surroundings=surroundings)
    return plan_straight(function, trampoline)


def try_prologues(prologues: Iterable[list[int]], seed: int) -> Tried:
    """Runs each from a random state, with its trampoline in reach of a branch and out of reach by turns."""
    machine, tried, rng = Machine(), Tried(), random.Random(seed)
    for i, words in enumerate(prologues):
        surroundings = Surroundings(has_guarded_calls=rng.random() < 0.3)
        try:
            plan = plan_moved(words, NEAR if i % 3 == 0 else FAR, surroundings)
        except TargetError as refusal:
            tried.refuse(refusal)
            continue
        tried.moved += 1
        _check_scratch(words, plan)
        _compare(machine, words, plan, rng, tried)
    return tried


def _compare(machine: Machine, words: list[int], plan: PatchPlan, rng: random.Random, tried: Tried) -> None:
    begins = rng.choice(((FUNCTION, FUNCTION), *plan.moves))  # a thread that was found inside, too
    seed, image = rng.getrandbits(64), _image(words)
    machine.write_code(FUNCTION, image)
    before = machine.run(begins[0], seed)
    at = plan.address - FUNCTION
    machine.write_code(FUNCTION, image[:at] + plan.patch + image[at + len(plan.patch) :])
    machine.write_code(plan.trampoline_address, plan.trampoline)
    after = machine.run(begins[1], seed)
    tried.faults += before.kind != _BREAKPOINT
    if not before.kind or not (reason := _difference(before, after, plan)):
        return
    if _wants_veneer_register(words, plan):
        tried.improper += 1
    else:
        tried.differences.append(f"{reason}: {[f'{word:08x}' for word in words]}")


def _check_scratch(words: list[int], plan: PatchPlan) -> None:
    """No register that moved code changes is one that the instructions themselves use, by the disassembler's word."""
    n = _moved_end(plan)
    image = _image(words[:n])
    for one in decode_arm64(image[: 4 * n], FUNCTION):
        used = plan.scratch & (one.reads | one.writes)
        assert not used or used == {"x16"}, f"{one}: {used}"


def _moved_end(plan: PatchPlan) -> int:
    """Words up to the last one that is moved; those that are kept are moved, too."""
    has_kept = any(pc == plan.address for pc, _ in plan.moves)
    return (plan.address - FUNCTION) // 4 + len(plan.moves) + (not has_kept)


def _scratch(plan: PatchPlan) -> set[int]:
    return {int(name[1:]) for name in plan.scratch}


def _wants_veneer_register(words: list[int], plan: PatchPlan) -> bool:
    """Whether what was not moved may read a register that moved code changes: any field that can name one counts."""
    fields = {word >> shift & 31 for word in words[_moved_end(plan) :] for shift in (0, 5, 10, 16)}
    return bool(fields & _scratch(plan))


def _difference(before: Outcome, after: Outcome, plan: PatchPlan) -> str:
    is_in_trampoline = 0 <= after.pc - plan.trampoline_address < _TRAMPOLINE_BYTES
    if before.kind != after.kind:
        return f"ends by {before.kind}, {after.kind}"
    if before.pc != after.pc and not is_in_trampoline:
        return f"ends at {before.pc:x}, {after.pc:x}"
    if before.pc != after.pc and before.kind == _BREAKPOINT:
        return f"ends in the trampoline instead of {before.pc:x}"
    scratch = _scratch(plan)
    for number, (one, other) in enumerate(zip(before.general, after.general, strict=True)):
        if one != other and number not in scratch:
            return f"x{number} {one:x}, {other:x}"
    if before.flags != after.flags or before.vectors != after.vectors or before.data != after.data:
        return "flags, vectors or memory"
    return ""


def _image(words: Iterable[int]) -> bytes:
    code = b"".join(struct.pack("<I", word) for word in words)
    return code + struct.pack("<I", BRK) * ((_FUNCTION_BYTES - len(code)) // 4)


def random_prologue(rng: random.Random) -> list[int]:
    """One in four may name x16 and x17."""
    words: list[int] = []
    forbidden = set() if rng.random() < 0.25 else {16, 17}
    n_frame = rng.randrange(_PROLOGUE_WORDS) // 2
    while len(words) < _PROLOGUE_WORDS:
        kind = rng.random()
        if len(words) < n_frame:
            word = _of_a_frame(rng)
        elif kind < 0.15:
            word = _branch(rng, len(words))
        elif kind < 0.4:
            word = _literal_or_address(rng)
        else:
            word = _any_instruction(rng)
        if not forbidden & {word >> shift & 31 for shift in (0, 5, 10, 16)}:
            words.append(word)
    return words


def _of_a_frame(rng: random.Random) -> int:
    """Common function prologues, and code that looks like them."""
    first, second, imm = rng.randrange(32), rng.randrange(32), rng.randrange(1, 64)
    return rng.choice(
        (
            rng.choice((0xA9800000, 0x6D800000, 0xAD800000)) | (-imm & 0x7F) << 15 | second << 10 | 31 << 5 | first,
            rng.choice((0xF8000C00, 0xFC000C00, 0x3C800C00)) | (-16 * imm & 0x1FF) << 12 | 31 << 5 | first,
            0xD1000000 | rng.getrandbits(1) << 22 | 16 * imm << 10 | 31 << 5 | rng.choice((31, 31, first)),
            rng.choice((0xD503233F, 0xD503237F)),
            0xAA0003E0 | second << 16 | first,  # mov
            0xF9400000 | imm << 10 | second << 5 | first,  # ldr
            0xF8400400 | rng.getrandbits(1) << 11 | imm << 12 | second << 5 | first,  # ldr, written back
            0xEB00001F | second << 16 | first << 5,  # cmp
        )
    )  # fmt: skip


def _any_instruction(rng: random.Random) -> int:
    while True:
        word = rng.getrandbits(32)
        one = next(decode_arm64(struct.pack("<I", word), FUNCTION), None)
        is_sve = word >> 25 & 0b1111 == 0b0010  # the state it needs is not set here
        if (
            one is not None
            and not is_sve
            and one.flow is not Flow.SYSTEM
            and not _HARMFUL.match(one.mnemonic)
        ):
            return word


def _branch(rng: random.Random, index: int) -> int:
    """To a page of traps, mostly: those begin at multiples of 8 KiB."""
    page = FUNCTION + 8192 * rng.randrange(-100, 100) + 4 * rng.randrange(64, 1024)
    words = (page - FUNCTION) // 4 - index
    short = (words & 0x1FFF) - 0x1000  # tbz: ±32 KiB
    register = rng.randrange(32)
    return rng.choice(
        (
            0x14000000 | words & 0x3FFFFFF,
            0x94000000 | words & 0x3FFFFFF,
            0x54000000 | (words & 0x7FFFF) << 5 | rng.randrange(16),
            0x34000000 | rng.getrandbits(1) << 31 | rng.getrandbits(1) << 24 | (words & 0x7FFFF) << 5 | register,
            0x36000000 | rng.getrandbits(1) << 24 | rng.getrandbits(1) << 31 | rng.randrange(32) << 19
            | (short & 0x3FFF) << 5 | register,
            0xD63F0000 | register << 5,
            0xD65F0000 | register << 5,
        )
    )  # fmt: skip


def _literal_or_address(rng: random.Random) -> int:
    top = rng.choice((0x18, 0x58, 0x98, 0xD8, 0x1C, 0x5C, 0x9C, 0x10, 0x90))
    if top in (0x10, 0x90):
        return top << 24 | rng.getrandbits(2) << 29 | rng.getrandbits(19) << 5 | rng.randrange(32)
    return top << 24 | (rng.randrange(-0x3FFF0, 0x3FFF0) & 0x7FFFF) << 5 | rng.randrange(32)
