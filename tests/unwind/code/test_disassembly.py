"""Facts about one decoded instruction: flow, registers, memory."""

import shutil
import subprocess

import pytest

from memleak_android.unwind.code.disassembly import Flow, Instruction, decode_arm64, decode_x86_64


def only(code: str, address: int = 0) -> Instruction:
    (instruction,) = decode_x86_64(bytes.fromhex(code), address)
    return instruction


@pytest.mark.parametrize(
    ("code", "flow", "target"),
    [
        ("55", Flow.NEXT, None),  # push rbp
        ("f30f1efa", Flow.NEXT, None),  # endbr64
        ("7406", Flow.CONDITIONAL, 0x1008),  # je
        ("0f84c2000000", Flow.CONDITIONAL, 0x10C8),
        ("e2fe", Flow.CONDITIONAL, 0x1000),  # loop
        ("e3fe", Flow.CONDITIONAL, 0x1000),  # jrcxz
        ("ebfe", Flow.JUMP, 0x1000),
        ("e900000000", Flow.JUMP, 0x1005),
        ("ffe0", Flow.JUMP, None),  # jmp rax
        ("3effe0", Flow.JUMP, None),  # notrack jmp rax
        ("ff25341c1300", Flow.JUMP, None),  # jmp [rip + x]
        ("e8fbffffff", Flow.CALL, 0x1000),
        ("ffd0", Flow.CALL, None),
        ("c3", Flow.RETURN, None),
        ("f3c3", Flow.RETURN, None),
        ("c20800", Flow.RETURN, None),
        ("0f05", Flow.SYSTEM, None),
        ("cd80", Flow.SYSTEM, None),
        ("cc", Flow.SYSTEM, None),
        ("0f0b", Flow.STOP, None),
        ("f4", Flow.STOP, None),
    ],
)
def test_flow_and_target(code: str, flow: Flow, target: int | None) -> None:
    instruction = only(code, 0x1000)
    assert (instruction.flow, instruction.target) == (flow, target)
    assert instruction.is_indirect == (target is None and flow in (Flow.JUMP, Flow.CALL))


@pytest.mark.parametrize(
    ("code", "reads", "writes"),
    [
        ("4889df", {"rbx"}, {"rdi"}),  # mov rdi, rbx
        ("31ff", {"rdi"}, {"rdi"}),  # xor edi, edi: a write to a part is a write
        ("40b701", set(), {"rdi"}),  # mov dil, 1
        ("41b001", set(), {"r8"}),  # mov r8b, 1
        ("b401", set(), {"rax"}),  # mov ah, 1
        ("664189c1", {"rax"}, {"r9"}),  # mov r9w, ax
        ("55", {"rbp", "rsp"}, {"rsp"}),  # push rbp
        ("4883ec18", {"rsp"}, {"rsp"}),  # sub rsp, 0x18
        ("48f7e6", {"rax", "rsi"}, {"rax", "rdx"}),  # mul rsi
        ("4885ff", {"rdi"}, set()),  # test rdi, rdi
        ("488d4717", {"rdi"}, {"rax"}),  # lea rax, [rdi + 0x17]
    ],
)
def test_registers_in_their_widest_form(code: str, reads: set[str], writes: set[str]) -> None:
    instruction = only(code)
    assert instruction.reads == frozenset(reads)
    assert instruction.writes == frozenset(writes)


@pytest.mark.parametrize(
    ("code", "base", "is_written"),
    [
        ("488b07", "rdi", False),  # mov rax, [rdi]
        ("488907", "rdi", True),  # mov [rdi], rax
        ("8907", "rdi", True),
        ("4c89442440", "rsp", True),  # mov [rsp + 0x40], r8
        ("803d0102000000", "rip", False),  # cmp byte [rip + 0x201], 0
        ("48ff07", "rdi", True),  # inc qword [rdi]
        ("f048ff0f", "rdi", True),  # lock dec qword [rdi]
        ("f0480fb10e", "rsi", True),  # lock cmpxchg [rsi], rcx
        ("488706", "rsi", True),  # xchg [rsi], rax
        ("f0480fc106", "rsi", True),  # lock xadd [rsi], rax
        ("f0480fab06", "rsi", True),  # lock bts [rsi], rax
        ("0f94462d", "rsi", True),  # sete [rsi + 0x2d]
        ("f3aa", "rdi", True),  # rep stosb
        ("0f1107", "rdi", True),  # movups [rdi], xmm0
    ],
)
def test_memory_operands(code: str, base: str, is_written: bool) -> None:
    operand = only(code).memory[0]
    assert (operand.base, operand.is_written) == (base, is_written)
    assert only(code).writes_memory == is_written


def test_address_arithmetic_touches_no_memory() -> None:
    assert only("488d4717").memory == ()


def test_decoding_stops_at_invalid_code() -> None:
    instructions = list(decode_x86_64(bytes.fromhex("5506ff"), 0x10))  # push rbp; push es (not in 64 bit)
    assert [(one.address, one.end, str(one)) for one in instructions] == [(0x10, 0x11, "push rbp")]
    assert list(decode_x86_64(b"")) == []


def test_same_boundaries_as_objdump() -> None:
    path = "/usr/bin/dash"
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed (Debian: binutils)")
    headers = subprocess.run(["objdump", "-h", "-w", path], capture_output=True, text=True, check=False)
    if headers.returncode:
        pytest.skip(f"{path} cannot be read")
    size, vaddr, _, offset = next(
        [int(word, 16) for word in line.split()[2:6]]
        for line in headers.stdout.splitlines()
        if " .text " in line
    )
    listing = subprocess.run(
        ["objdump", "-d", "-j", ".text", "--insn-width=16", path], capture_output=True, text=True, check=True
    ).stdout
    expected = [
        (int(head.rstrip(":"), 16), len(code.split()))
        for head, code in (line.split("\t")[:2] for line in listing.splitlines() if ":\t" in line)
    ]
    with open(path, "rb") as file:
        file.seek(offset)
        code = file.read(size)
    ours = [(one.address, one.size) for one in decode_x86_64(code, vaddr)]
    assert len(ours) > 10_000
    assert ours == expected


@pytest.mark.parametrize(
    ("word", "reads", "writes"),
    [
        (0xEB1C021F, {"x16", "x28"}, set()),  # cmp x16, x28
        (0xF1000A1F, {"x16"}, set()),  # cmp x16, #2
        (0xAB01021F, {"x16", "x1"}, set()),  # cmn x16, x1
        (0xEA01021F, {"x16", "x1"}, set()),  # tst x16, x1
        (0xC8A17C62, {"x1", "x2", "x3"}, {"x1", "x2"}),  # cas x1, x2, [x3]: it writes x1 only
        (0xF8210210, {"x1", "x16"}, {"x1"}),  # ldadd x1, x16, [x16]: the base counts as read alone
    ],
)  # fmt: skip
def test_arm64_names_what_the_decoder_leaves_out(word: int, reads: set[str], writes: set[str]) -> None:
    """At least: more counts as read or written than is."""
    (one,) = decode_arm64(word.to_bytes(4, "little"))
    assert (one.reads, one.writes) == (reads, writes)
