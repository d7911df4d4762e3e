"""The agent's frame rules against the host's own CFI decoder, and against libgcc's unwinder on a live stack."""

import os
import subprocess
import sys
from pathlib import Path

import capstone
import numpy as np
import pytest
from numpy.typing import NDArray

from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.cfi.rules import RuleKind, UnwindRow
from tests.support.gcc import gcc

HERE = Path(__file__).resolve().parents[1] / "programs" / "parts"
AGENT = HERE.parents[3] / "device" / "agent"
CORPUS = HERE.parents[4] / "shared" / "corpus"
PARTS = "process/code_map process/patient_read probes/frames process/proc_file process/process_maps"
SOURCES = [*sorted((AGENT.parent / "cfi").glob("*.c")), *(AGENT / f"{name}.c" for name in PARTS.split())]
NONE, END, SP, FP, FP_DEREF = 1, 2, 3, 4, 5
AT_FP = 0xFFFF  # ML_FRAME_FP_AT_FP
ANSWER = np.dtype(
    [("found", "<i4"), ("kind", "<i4"), ("offset", "<i4"), ("fp_words", "<u2"), ("ra_words", "<u2")]
)
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
FILES = [
    *Path(np.__file__).parent.glob("*core/_multiarray_umath*.so"),  # much of it aligns its stack
    LIBRARIES / "libc.so.6",
    Path("/lib64/ld-linux-x86-64.so.2"),
    LIBRARIES / "libstdc++.so.6",
    LIBRARIES / "libjq.so.1",
    LIBRARIES / "libonig.so.5",
    LIBRARIES / "libsqlite3.so.0",
    LIBRARIES / "libcrypto.so.3",
    LIBRARIES / "libm.so.6",
    LIBRARIES / "libz.so.1",
    *(
        Path("/usr/bin") / name
        for name in ("python3.11", "git", "bash", "jq", "perl", "gdb", "env", "sqlite3")
    ),
]
FP_OF = {"x86_64": (6, 7, 16), "arm64": (29, 31, 30)}  # frame pointer, stack pointer, return address

Rule = tuple[int, int, int, int]


def build(target: Path, *flags: str) -> Path:
    sources = [HERE / f"{target.name}.c", *SOURCES]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    includes = [f"-I{AGENT}", f"-I{AGENT.parent}"]
    gcc("-std=gnu11", "-D_GNU_SOURCE=", "-g", *flags, *warnings, *includes, *sources, "-o", target)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("rules") / "frame_rules", "-O2")


SANITIZERS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sanitized") / "frame_rules", *SANITIZERS)


def answers(program: Path, path: Path, vaddrs: NDArray[np.uint64], arch: str = "x86_64") -> NDArray[np.void]:
    run = [program, "file", arch, path]
    output = subprocess.run(run, input=vaddrs.tobytes(), capture_output=True, check=True).stdout
    return np.frombuffer(output, ANSWER)


# ---- what the rule has to be ------------------------------------------------------------------------


def return_addresses(module: Module) -> NDArray[np.uint64]:
    """The vaddr behind every call instruction of .text."""
    section = module.section(".text")
    assert section is not None
    code = bytes(module.section_bytes(section))
    if module.arch.name == "arm64":
        words = np.frombuffer(code, "<u4", len(code) // 4)
        calls = np.flatnonzero((words >> 26 == 0x25) | (words & 0xFFFFFC1F == 0xD63F0000))  # bl, blr
        return (section.vaddr + 4 * calls.astype(np.uint64) + 4).astype(np.uint64)
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    machine.skipdata = True
    found = [at + size for at, size, name, _ in machine.disasm_lite(code, section.vaddr) if name == "call"]
    return np.array(found, np.uint64)


def random_addresses(module: Module, step: int) -> NDArray[np.uint64]:
    """vaddrs in the code, each `step` bytes behind the start of an instruction."""
    code = next(segment for segment in module.loads if segment.is_executable)
    steps = np.random.default_rng(1).integers(1, code.file_bytes // step, 20_000)
    return (code.vaddr + step * steps).astype(np.uint64)


def words_below(rule_offset: int) -> int:
    words, rest = divmod(-rule_offset, 8)
    return words if not rest and 0 < words < AT_FP else 0


def expected(row: UnwindRow, arch: str) -> Rule:
    """What device/frame_rule.h can say of a row."""
    fp, sp, return_register = FP_OF[arch]
    none = (NONE, 0, 0, 0)
    rules = {rule.register: rule for rule in row.rules}
    back, saved = rules.get(return_register), rules.get(fp)
    if row.is_signal or row.return_register != return_register or back is None:
        return none
    if back.kind is RuleKind.UNDEFINED:
        return (END, 0, 0, 0)
    if row.cfa_expression:
        kind, offset = deref(row.cfa_expression, fp)
    else:
        kind, offset = {sp: SP, fp: FP}.get(row.cfa_register, NONE), row.cfa_offset
    fp_words = 0
    if saved is not None and saved.kind is not RuleKind.SAME_VALUE:
        fp_words = words_below(saved.offset) if saved.kind is RuleKind.OFFSET else 0
        if saved.kind is RuleKind.EXPRESSION and saved.expression == bytes([0x70 + fp, 0]):
            fp_words = AT_FP
        if not fp_words:
            return none
    ra_words = words_below(back.offset) if back.kind is RuleKind.OFFSET else 0
    if kind == NONE or not ra_words or (kind == SP and fp_words == AT_FP):
        return none
    return kind, offset, fp_words, ra_words


def deref(code: bytes, fp: int) -> tuple[int, int]:
    """DW_OP_breg<fp> offset; DW_OP_deref, with an offset of one byte."""
    if len(code) == 3 and code[0] == 0x70 + fp and code[1] < 0x80 and code[2] == 0x06:
        return FP_DEREF, code[1] - (code[1] >> 6 << 7)
    return NONE, 0


def expected_rules(module: Module, vaddrs: NDArray[np.uint64]) -> NDArray[np.void]:
    ids = module.table.row_ids(vaddrs - np.uint64(1))
    rules = [expected(row, module.arch.name) for row in module.table.rows]
    table = np.array([*rules, (NONE, 0, 0, 0)], [(name, ANSWER[name]) for name in ANSWER.names[1:]])
    return table[np.where(ids >= 0, ids, len(rules))]


def compared(program: Path, path: Path, module: Module, vaddrs: NDArray[np.uint64]) -> NDArray[np.void]:
    """The agent's answers, once they were found to be the host's."""
    ours, truth = answers(program, path, vaddrs, module.arch.name), expected_rules(module, vaddrs)
    different = np.flatnonzero(ours[list(truth.dtype.names)] != truth)
    lines = [f"{vaddrs[i]:#x}: {ours[i]}, by the host {truth[i]}" for i in different[:10]]
    assert not lines, f"{path}: {len(different)} of {len(vaddrs)} differ\n" + "\n".join(lines)
    return ours


def module_of(path: Path) -> Module:
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return Module.from_path(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_call_of_a_binary(program: Path, path: Path) -> None:
    module = module_of(path)
    vaddrs = return_addresses(module)
    ours = compared(program, path, module, vaddrs)
    assert len(vaddrs) > 50
    assert np.count_nonzero(ours["kind"] == NONE) < 0.02 * len(vaddrs)


def test_each_address(program: Path) -> None:
    """Rows begin between instructions, and no return address is one byte behind such a start: so any address."""
    module = module_of(FILES[0])
    compared(program, FILES[0], module, random_addresses(module, 1))


@pytest.mark.parametrize("name", ["bluetooth_arm64__pc_4/libbluetooth.so", "photos_reset_arm64/libart.so"])
def test_arm64(program: Path, name: str) -> None:
    """At any instruction: these files have no code in them, only its CFI."""
    module = module_of(CORPUS / name)
    ours = compared(program, CORPUS / name, module, random_addresses(module, 4))
    assert np.count_nonzero(ours["kind"] >= SP) > 15_000


# ---- one instruction at a time ----------------------------------------------------------------------

ENTRY = (SP, 8, 0, 1)
PUSHED = ".cfi_def_cfa_offset 16\n.cfi_offset rbp, -16"
FRAMED = f"{PUSHED}\n.cfi_def_cfa_register rbp"
CASES: list[tuple[str, str, Rule]] = [
    ("at entry", "", ENTRY),
    ("frame pointer", FRAMED, (FP, 16, 2, 1)),
    ("a row behind the pc", f"{FRAMED}\nAFTER\n.cfi_def_cfa rsp, 8", (FP, 16, 2, 1)),
    ("state remembered", f"{FRAMED}\n.cfi_remember_state\nnop\n.cfi_def_cfa rsp, 8\nnop\n.cfi_restore_state", (FP, 16, 2, 1)),
    ("restored by CIE", f"{FRAMED}\nnop\n.cfi_def_cfa rsp, 8\n.cfi_restore rbp\n", ENTRY),
    ("restored, extended form", f"{FRAMED}\nnop\n.cfi_escape 6, 6", (FP, 16, 0, 1)),
    ("offset, extended form", ".cfi_escape 5, 6, 2", (SP, 8, 2, 1)),
    ("offset, signed form", ".cfi_escape 0x11, 6, 3", (SP, 8, 3, 1)),
    ("negative offset", ".cfi_escape 0x2f, 6, 2", (NONE, 0, 0, 0)),  # above the CFA
    ("CFA, signed form", ".cfi_escape 0x12, 7, 0x78", (SP, 64, 0, 1)),
    ("CFA offset, signed form", ".cfi_escape 0x13, 0x70", (SP, 128, 0, 1)),
    ("CFA above 2^27", ".cfi_def_cfa rsp, 0x20000000", (NONE, 0, 0, 0)),
    ("CFA of another register", ".cfi_def_cfa r10, 0", (NONE, 0, 0, 0)),
    ("CFA of another register, then not", ".cfi_def_cfa r10, 0\nnop\n.cfi_def_cfa rsp, 24", (SP, 24, 0, 1)),
    ("aligned frame", ".cfi_escape 0x0f, 3, 0x76, 0x78, 6", (FP_DEREF, -8, 0, 1)),
    ("aligned frame of GCC", ".cfi_escape 0x0f, 3, 0x76, 0x78, 6\n.cfi_escape 0x10, 6, 2, 0x76, 0", (FP_DEREF, -8, AT_FP, 1)),
    ("frame pointer at an offset from itself", ".cfi_escape 0x0f, 3, 0x76, 0x78, 6\n.cfi_escape 0x10, 6, 2, 0x76, 8", (NONE, 0, 0, 0)),
    ("frame pointer at itself, CFA of sp", ".cfi_escape 0x10, 6, 2, 0x76, 0", (NONE, 0, 0, 0)),
    ("frame pointer by another register", ".cfi_escape 0x0f, 3, 0x76, 0x78, 6\n.cfi_escape 0x10, 6, 2, 0x77, 0", (NONE, 0, 0, 0)),
    ("aligned frame, offset of two bytes", ".cfi_escape 0x0f, 4, 0x76, 0xf0, 0x7e, 6", (FP_DEREF, -144, 0, 1)),
    ("CFA expression without end", ".cfi_escape 0x0f, 2, 0x76, 0x78", (NONE, 0, 0, 0)),
    ("CFA expression of more", ".cfi_escape 0x0f, 5, 0x76, 0x78, 6, 0x23, 8", (NONE, 0, 0, 0)),
    ("frame pointer elsewhere", ".cfi_register rbp, rbx", (NONE, 0, 0, 0)),
    ("frame pointer as before", f"{PUSHED}\n.cfi_same_value rbp", (SP, 16, 0, 1)),
    ("frame pointer lost", ".cfi_undefined rbp", (NONE, 0, 0, 0)),
    ("frame pointer computed", ".cfi_escape 0x16, 6, 1, 0x30", (NONE, 0, 0, 0)),
    ("outermost", ".cfi_undefined rip", (END, 0, 0, 0)),
    ("return address further down", ".cfi_offset rip, -40", (SP, 8, 0, 5)),
    ("return address in a register", ".cfi_register rip, r11", (NONE, 0, 0, 0)),
    ("other registers", ".cfi_offset rbx, -24\n.cfi_undefined r9\n.cfi_escape 0x16, 3, 1, 0x30", ENTRY),
    ("size of arguments", ".cfi_escape 0x2e, 0x90, 1", ENTRY),
    ("signal frame", ".cfi_signal_frame", (NONE, 0, 0, 0)),
    ("arm64's instruction", ".cfi_escape 0x2d", ENTRY),
    ("no instruction", ".cfi_escape 0x3f", (NONE, 0, 0, 0)),
    ("nothing remembered", ".cfi_escape 0x0b", (NONE, 0, 0, 0)),
    ("too much remembered", ".cfi_escape 0x0a\n" * 17, (NONE, 0, 0, 0)),
    ("register out of range", ".cfi_escape 0x07, 0xff, 0x7f", (NONE, 0, 0, 0)),
    ("number that does not end", ".cfi_escape 0x0e" + ", 0x80" * 12 + ", 0", (NONE, 0, 0, 0)),
    ("far rows", f"{PUSHED}\n.skip 300, 0x90\n.cfi_def_cfa_offset 24\n.skip 70000, 0x90\n.cfi_def_cfa_offset 32", (SP, 32, 2, 1)),
    ("location set backwards", ".cfi_escape 1, 0, 0, 0, 0", (NONE, 0, 0, 0)),  # .eh_frame lies before .text
]  # fmt: skip


@pytest.fixture(scope="module")
def written_by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of one function for each case, whose call is at the global symbol c<i>."""
    pytest.importorskip(
        "ziglang", reason="its linker takes CFI as it is; GNU ld makes no index for what is malformed"
    )
    folder = tmp_path_factory.mktemp("cases")
    functions = []
    for i, (_, directives, _) in enumerate(CASES):
        before, _, after = directives.partition("AFTER")
        functions.append(
            f".type f{i}, @function\nf{i}: .cfi_startproc\n{before}\nnop\n.globl c{i}\nc{i}: call c{i}\n"
            f"r{i}: {after}\nnop\n.cfi_endproc\n.size f{i}, .-f{i}\n"
        )
    source, library = folder / "cases.s", folder / "cases.so"
    source.write_text(".text\n" + "".join(functions) + '.section .note.GNU-stack,"",@progbits\n')
    gcc("-c", source, "-o", folder / "cases.o")
    linker = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "-Bsymbolic", "--eh-frame-hdr"]
    subprocess.run([*linker, folder / "cases.o", "-o", library], check=True)
    return library


def test_each_instruction(program: Path, written_by_hand: Path) -> None:
    module = Module.from_path(written_by_hand)
    calls = [next(iter(module.functions(frozenset({f"c{i}".encode()})))) for i in range(len(CASES))]
    ours = answers(program, written_by_hand, np.array(calls, np.uint64) + np.uint64(5))
    assert np.all(ours["found"] == 1)
    got = {name: tuple(answer.tolist())[1:] for (name, _, _), answer in zip(CASES, ours, strict=True)}
    assert got == {name: rule for name, _, rule in CASES}


# ---- a stack ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What frame_stack prints, by the first word."""
    if os.uname().machine != "x86_64":
        pytest.skip("the program captures its stack on x86_64 only")
    program = build(tmp_path_factory.mktemp("stack") / "frame_stack", "-O2")
    lines = subprocess.run([program], capture_output=True, check=True, text=True).stdout.splitlines()
    answers: dict[str, list[str]] = {}
    for line in lines:
        word, value = line.split()
        answers.setdefault(word, []).append(value)
    return answers


def test_a_stack_walked_by_its_rules_alone(own_stack: dict[str, list[str]]) -> None:
    assert own_stack["complete"] == ["1"]
    assert own_stack["walked"][1:] == own_stack["truth"]
    assert len(set(own_stack["walked"])) < len(own_stack["walked"])  # it recurses


def test_each_return_address_is_taught_once(own_stack: dict[str, list[str]]) -> None:
    assert own_stack["other_image"] == ["0"]
    assert own_stack["added"] == [str(len(set(own_stack["walked"])) + 1)]  # and that of the capture itself
    assert own_stack["added_again"] == ["0"]


def test_records_that_say_less(own_stack: dict[str, list[str]]) -> None:
    """The trampoline of a uretprobe cuts the stack unless the record tells what it replaced."""
    assert int(own_stack["cut_by_trampoline"][0]) == 6
    assert own_stack["with_fixup"] == own_stack["added"]
    assert own_stack["short_slice"] == own_stack["no_slice"] == ["1"]
    assert own_stack["impossible_slice"] == own_stack["no_fp"] == ["0"]
    assert own_stack["code_of_no_file"] == own_stack["no_code"] == ["0"]


def test_room_is_given_back(own_stack: dict[str, list[str]]) -> None:
    """A full table drops images without a live process; the rules of live ones stay."""
    assert own_stack["kept"] == own_stack["added"]
    assert (own_stack["no_room"], own_stack["is_full"]) == (["0"], ["1"])
    assert own_stack["is_full_after"] == own_stack["kept_after"] == ["0"]
    assert own_stack["room_after"] == own_stack["added"]


def test_nothing_is_read_out_of_bounds(tmp_path: Path, own_stack: dict[str, list[str]]) -> None:
    """The same under the sanitizers, whose frames differ."""
    answers = subprocess.run(
        [build(tmp_path / "frame_stack", *SANITIZERS)], capture_output=True, check=True, text=True
    ).stdout
    assert "complete 1" in answers.splitlines()
    assert {line.split()[0] for line in answers.splitlines()} == set(own_stack)


@pytest.mark.parametrize("path", [Path("/usr/bin/env"), LIBRARIES / "libz.so.1", LIBRARIES / "libjq.so.1"])
def test_damaged_tables(sanitized: Path, path: Path) -> None:
    """2,000 times other bytes of the ELF header, the search table and the entries; each address has an answer."""
    vaddrs = return_addresses(module_of(path))
    vaddrs = vaddrs[:: len(vaddrs) // 64]
    run = [sanitized, "mutate", "x86_64", path, "2000", "1"]
    output = subprocess.run(run, input=vaddrs.tobytes(), capture_output=True, check=True).stdout
    kinds = [int(line) for line in output.split()]
    assert sum(kinds) == 2000 * len(vaddrs)
    assert sum(kinds[NONE : FP_DEREF + 1]) == sum(kinds)
    assert 0.01 < kinds[NONE] / sum(kinds) < 0.9
