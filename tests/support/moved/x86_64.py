"""Prologues made up from a seed, and the program that runs them unmoved and moved (tests/support/programs/run_moved.c)."""

import random
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.inline.patch_plan import FunctionCode, PatchPlan
from memleak_android.host.tracers.inline.x86_encoding import parse
from memleak_android.unwind.code.disassembly import Flow, decode_x86_64
from memleak_android.unwind.elf_headers import EM_X86_64
from tests.support.gcc import gcc
from tests.support.moved.code import Tried, plan_straight

FUNCTION = 0x200008000
DATA, DATA_BYTES = 0x210000000, 0x4000
NEAR, FAR = 0x200200000, 0x7E0000000000
_REGIONS = (0x200000000, NEAR, FAR)
_IMAGE_BYTES = 256
_FUNCTION_BYTES = 64
_PROLOGUE_BYTES = 16
_MODRM_OPCODES = (
    "8b", "89", "8d", "03", "3b", "85", "63", "0fb6", "0f10", "0f11", "0f28", "0fa3", "0f44", "38", "ff",
)  # fmt: skip

# to the runner itself; never the same twice
_HARMFUL = re.compile(
    r"^popf|^wr[fg]sbase|^xrstor|^fxrstor|[fg]s:|, [fg]s$|^rd(tsc|rand|seed|pid)|^cpuid|^xsave|^xgetbv"
)


def build_runner(folder: Path) -> Path:
    source = Path(__file__).parents[1] / "programs" / "run_moved.c"
    program = folder / "run_moved"
    # a case may change where fs leads: the handler outlives that with no canary and no function yet to be bound
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-fno-stack-protector", "-Wl,-z,now")
    gcc(*flags, "-o", program, source)
    return program


def try_prologues(runner: Path, prologues: Iterable[bytes], seed: int) -> Tried:
    """Runs each from a random state, with its trampoline in reach and out of reach by turns."""
    rng, tried, kept = random.Random(seed), Tried(), []
    argv = [str(runner), *(f"{region:x}" for region in _REGIONS)]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output) as process,
    ):
        for i, prologue in enumerate(prologues):
            try:
                plan = plan_moved(prologue, FAR if i % 2 else NEAR)
            except TargetError as refusal:
                tried.refuse(refusal)
                continue
            kept.append(prologue)
            process.stdin.write(_case(prologue, plan, rng))
        process.stdin.close()
        process.wait()
        output.seek(0)
        lines = output.read().decode().splitlines()
    assert process.returncode == 0 and lines, f"the runner ended with {process.returncode}"
    *different, last = lines
    tried.differences = [f"{line}: {kept[int(line.split()[1])].hex()}" for line in different]
    tried.moved, tried.faults, tried.died = (int(word) for word in last.split()[1::2])
    assert tried.moved == len(kept)
    return tried


def plan_moved(prologue: bytes, trampoline: int) -> PatchPlan:
    """A patch that leads straight to the moved instructions."""
    code = prologue.ljust(_FUNCTION_BYTES, b"\xcc")
    return plan_straight(FunctionCode("f", EM_X86_64, FUNCTION, code), trampoline)


def random_prologue(rng: random.Random) -> bytes:
    code = b""
    while rng.random() < 0.5 and len(code) < _PROLOGUE_BYTES - 4:
        code += _of_a_frame(rng)
    while len(code) < _PROLOGUE_BYTES:
        kind = rng.random()
        if kind < 0.15:
            code += _branch(rng, FUNCTION + len(code))
        elif kind < 0.4:
            code += _relative(rng, FUNCTION + len(code))
        else:
            code += _any_instruction(rng)
    return code


def _of_a_frame(rng: random.Random) -> bytes:
    """Common function prologues, and code that looks like them."""
    register = 0xC0 | rng.randrange(64)
    return rng.choice(
        (
            bytes((0x50 | rng.randrange(8),)),
            bytes((0x41, 0x50 | rng.randrange(8))),
            bytes((0x66, 0x50 | rng.randrange(8))),
            bytes((0x48, 0x83, 0xEC, rng.randrange(0, 256, 8))),
            bytes((0x48, 0x81, 0xEC)) + struct.pack("<i", 8 * rng.randrange(-100, 100)),
            bytes((0x48 | rng.randrange(8), rng.choice((0x89, 0x8B, 0x85, 0x39, 0x31)), register)),
            bytes((0xB8 | rng.randrange(8),)) + rng.randbytes(4),
        )
    )  # fmt: skip


def _any_instruction(rng: random.Random) -> bytes:
    """Random bytes that a disassembler takes for an instruction, which may not harm the runner itself."""
    while True:
        raw = rng.randbytes(15)
        if rng.random() < 0.5:
            raw = rng.choice((b"\x48", b"\x49", b"\x4c", b"\x41", b"")) + raw
        one = next(decode_x86_64(raw), None)
        if one is not None and one.flow is not Flow.SYSTEM and not _HARMFUL.search(str(one)):
            return one.code


def _branch(rng: random.Random, at: int) -> bytes:
    opcode = rng.choice(
        (*(bytes((0x70 | i,)) for i in range(16)), b"\xeb", b"\xe0", b"\xe1", b"\xe2", b"\xe3",
         *(bytes((0x0F, 0x80 | i)) for i in range(16)), b"\xe9", b"\xe8")
    )  # fmt: skip
    if len(opcode) == 1 and opcode[0] not in (0xE8, 0xE9):
        return opcode + rng.randbytes(1)
    target = FUNCTION + rng.randrange(-0x4000, 0x4000)
    return opcode + struct.pack("<i", target - at - len(opcode) - 4)


def _relative(rng: random.Random, at: int) -> bytes:
    """A rip-relative operand, mostly in the data, else in the code, where the patch may be, too."""
    rex = rng.choice((b"", b"\x48", b"\x4c", b"\x44", b"\x4f"))
    opcode = bytes.fromhex(rng.choice(_MODRM_OPCODES))
    prefix = rng.choice((b"", b"", b"", b"\x66"))
    head = prefix + rex + opcode + bytes((rng.randrange(8) << 3 | 5,))
    whole = parse(head + bytes(12))
    end = at + (whole.size if whole else len(head) + 4)
    is_data = rng.random() < 0.9 or opcode[-1] in (0x89, 0x11)
    target = DATA + 16 * rng.randrange(DATA_BYTES // 16) if is_data else FUNCTION + rng.randrange(256)
    return (
        head + struct.pack("<i", target - end) + rng.randbytes((whole.size - len(head) - 4) if whole else 0)
    )


def _case(prologue: bytes, plan: PatchPlan, rng: random.Random) -> bytes:
    before = prologue.ljust(_IMAGE_BYTES, b"\xcc")
    at = plan.address - FUNCTION
    after = before[:at] + plan.patch + before[at + len(plan.patch) :]
    pointers = [DATA + 8 * rng.randrange(64, DATA_BYTES // 8 - 64) for _ in range(16)]
    registers = [p if rng.random() < 0.8 else rng.getrandbits(64) for p in pointers]
    registers[15] = pointers[15]  # rsp
    if rng.random() < 0.7:
        registers[14] = rng.randrange(4)  # rcx: for loop, jrcxz and rep
    begins = rng.choice(((FUNCTION, FUNCTION), *plan.moves))  # a thread that was found inside, too
    flags = 0x202 | rng.getrandbits(12) & 0x8D5
    return struct.pack(
        f"<4Q{_IMAGE_BYTES}s{_IMAGE_BYTES}s{_IMAGE_BYTES}s16QQQ",
        FUNCTION, plan.trampoline_address, *begins, before, after, plan.trampoline.ljust(_IMAGE_BYTES, b"\xcc"),
        *registers, flags, rng.getrandbits(64),
    )  # fmt: skip
