"""The Arm exception index: each instruction, each form of entry, and every entry of real libraries."""

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import arch_by_name
from memleak_android.unwind.cfi.exidx import ExidxSource, run
from memleak_android.unwind.cfi.expression import evaluate
from memleak_android.unwind.cfi.rules import RuleKind, UnwindRow
from memleak_android.unwind.cfi.sources import row_sources
from memleak_android.unwind.cfi.table import UnwindTable
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.errors import BadCfiError
from memleak_android.unwind.trace import Method
from tests.support.corpus import CORPUS
from tests.support.debian_packages import packages
from tests.support.npm_packages import native_modules

MASK = 0xFFFFFFFF
SP, LR, PC = 13, 14, 15


class Target:
    """Registers with values all apart, and a memory in which each word is a hash of its address."""

    word_bytes = 4

    def register(self, number: int) -> int:
        return 0x10000000 + 0x01010000 * number

    def memory(self, address: int, size: int) -> int:
        assert size == 4
        return (address * 0x9E3779B1 ^ address >> 7) & MASK


def by_row(row: UnwindRow) -> dict[int, int]:
    """The caller's registers by our rules; SP is the CFA."""
    target = Target()
    if row.cfa_expression:
        cfa = evaluate(row.cfa_expression, target)
    else:
        cfa = (target.register(row.cfa_register) + row.cfa_offset) & MASK
    found = {SP: cfa}
    for rule in row.rules:
        address = cfa + rule.offset
        if rule.kind is RuleKind.EXPRESSION:
            address = evaluate(rule.expression, target, cfa)
        found[rule.register] = target.memory(address & MASK, 4)
    assert row.return_register == (PC if PC in found else LR)
    return found


def by_text(instructions: list[tuple[int, str]]) -> dict[int, int]:
    """The same by the words of readelf -u: (first byte, text)."""
    target, popped = Target(), {}
    vsp = target.register(SP)
    for opcode, text in instructions:
        if match := re.fullmatch(r"vsp = vsp ([+-]) (\d+)", text):
            vsp += int(match[2]) if match[1] == "+" else -int(match[2])
        elif match := re.fullmatch(r"vsp = r(\d+)", text):
            vsp = popped.get(int(match[1]), target.register(int(match[1])))
        elif match := re.fullmatch(r"pop \{D(\d+)(?:-D(\d+))?\}", text):
            vsp += 8 * (int(match[2] or match[1]) - int(match[1]) + 1)
            vsp += 4 if opcode == 0xB3 or 0xB8 <= opcode < 0xC0 else 0
        elif match := re.fullmatch(r"pop \{(.*)\}", text):
            loaded = None
            for name in match[1].split(", "):
                number = int(name[1:])
                popped[number] = target.memory(vsp & MASK, 4)
                loaded = popped[number] if number == SP else loaded
                vsp += 4
            vsp = vsp if loaded is None else loaded
        elif text == "finish":
            break
        else:
            raise AssertionError(f"readelf says {text!r}")
    return popped | {SP: vsp & MASK}


def readelf_entries(path: Path) -> Iterator[tuple[int, str, list[tuple[int, str]]]]:
    """(function, kind, instructions); kind: cantunwind, generic or compact."""
    text = subprocess.run(["readelf", "-uW", path], capture_output=True, text=True, check=False).stdout
    for block in re.split(r"\n\n", text):
        head = re.match(r"0x([0-9a-f]+)(?: <.*>)?: (.*)", block)
        if head is None:
            continue
        lines = re.findall(r"^  0x([0-9a-f]{2})(?: 0x[0-9a-f]{2})* +(.*?) *$", block, re.MULTILINE)
        is_generic = "Personality routine" in block
        kind = "cantunwind" if "cantunwind" in head[2] else "generic" if is_generic else "compact"
        yield int(head[1], 16), kind, [(int(opcode, 16), words) for opcode, words in lines]


def with_named_routines(path: Path, folder: Path) -> Path:
    """A copy that names its personality routines: readelf reads on behind those whose name it knows."""
    text = subprocess.run(["readelf", "-uW", path], capture_output=True, text=True, check=False).stdout
    addresses = sorted(set(re.findall(r"Personality routine: (0x[0-9a-f]+)", text)))
    copy = folder / path.name
    symbols = [
        f"--add-symbol=__gxx_personality_v0.{i}={address},global,function"
        for i, address in enumerate(addresses)
    ]
    subprocess.run(["llvm-objcopy", *symbols, path, copy], check=True, capture_output=True)
    return copy


def exidx_of(path: Path) -> ExidxSource:
    image = ElfImage(memoryview(path.read_bytes()), str(path))
    found = [source for source in row_sources(image, with_packed=False) if isinstance(source, ExidxSource)]
    assert len(found) == 1
    return found[0]


def armhf_files() -> list[Path]:
    folder = packages("armhf", "libc6", "libstdc++6", "libgcc-s1", "python3.11-minimal")
    libraries = folder / "usr/lib/arm-linux-gnueabihf"
    return [next(libraries.glob("libstdc++.so.6.*")), next(folder.rglob("libgcc_s.so.1"))]


def corpus_files() -> list[Path]:
    cases = ("offset_arm/libc.so", "jit_map_arm/libc.so", "straddle_arm/libc.so", "jit_map_arm/libart.so",
             "gnu_debugdata_arm/libandroid_runtime.so", "offset_arm/libunwindstack_test")  # fmt: skip
    if not CORPUS.is_dir():
        pytest.skip(f"the corpus is not beside the repository ({CORPUS})")
    return [CORPUS / case for case in cases]


# C++ libraries: C code of Debian's armhf has no exception index.
CPLUSPLUS = (
    "libicu72", "libprotobuf32", "libprotoc32", "libtbb12", "libyaml-cpp0.7", "libfmt9", "libspdlog1.10", "libre2-9",
    "libleveldb1d", "libsnappy1v5", "libqt5core5a", "libqt5network5", "libqt5xml5", "libqt5sql5", "libqt5dbus5",
    "libqt5concurrent5", "libqt5test5", "libpoppler126", "libzmq5", "libjsoncpp25", "libtinyxml2-9", "libgeos3.11.1",
    "libboost-filesystem1.74.0", "libboost-thread1.74.0", "libboost-regex1.74.0", "libboost-program-options1.74.0",
    "libboost-serialization1.74.0", "libboost-log1.74.0", "libboost-locale1.74.0", "libboost-iostreams1.74.0",
)  # fmt: skip


def cplusplus_files() -> list[Path]:
    folder = packages("armhf", *CPLUSPLUS)
    paths = [path for path in sorted(folder.rglob("*.so*")) if path.is_file() and not path.is_symlink()]
    images = [path for path in paths if path.read_bytes()[:4] == b"\x7fELF"]
    return [
        path for path in images if ElfImage(memoryview(path.read_bytes()), "").section_of_loader(".ARM.exidx")
    ]


def android_files() -> list[Path]:
    """Of Rust and C, by the NDK's clang."""
    return native_modules(
        "@napi-rs/lzma-android-arm-eabi@1.5.1",
        "@napi-rs/simple-git-android-arm-eabi@0.1.22",
        "@css-inline/css-inline-android-arm-eabi@0.20.1",
        "@napi-rs/tar-android-arm-eabi@1.1.1",
        "@node-rs/argon2-android-arm-eabi@2.2.1",
        "@node-rs/bcrypt-android-arm-eabi@1.10.8",
    )


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(armhf_files, marks=pytest.mark.proof),
        corpus_files,
        pytest.param(cplusplus_files, marks=pytest.mark.proof),
        pytest.param(android_files, marks=pytest.mark.proof),
    ],
)
def test_every_entry_restores_what_readelf_says(files: object, tmp_path: Path) -> None:
    if shutil.which("readelf") is None or shutil.which("llvm-objcopy") is None:
        pytest.skip("needs readelf and llvm-objcopy (apt-get install binutils llvm)")
    assert callable(files)
    counts = {"cantunwind": 0, "compact": 0, "generic": 0}
    paths = files()
    assert len(paths) >= (30 if files is cplusplus_files else 1)
    for path in paths:
        source = exidx_of(path)
        (index,) = source.indexes()
        entries = list(readelf_entries(with_named_routines(path, tmp_path)))
        assert [function for function, _, _ in entries] == index.starts.tolist()
        for offset, (function, kind, instructions) in zip(index.offsets.tolist(), entries, strict=True):
            rows = source.function(offset)  # of two entries for one function the first has no length
            counts[kind] += 1
            row = rows.row(0)
            assert rows.starts == [function] and row.method is Method.EXIDX
            if kind == "cantunwind":
                assert row.rules[0].kind is RuleKind.UNDEFINED
            else:
                assert instructions, (path.name, hex(function))
                assert by_row(row) == by_text(instructions), (path.name, hex(function))
    assert counts["compact"] > 500 and counts["cantunwind"] > 10


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("00", "vsp = vsp + 4"),
        ("3f", "vsp = vsp + 256"),
        ("40", "vsp = vsp - 4"),
        ("7f", "vsp = vsp - 256"),
        ("80 01", "pop {r4}"),
        ("8f ff", "pop {r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15}"),
        ("88 00", "pop {r15}"),
        ("84 09", "pop {r4, r7, r14}"),
        ("97", "vsp = r7"),
        ("9b", "vsp = r11"),
        ("a0", "pop {r4}"),
        ("a7", "pop {r4, r5, r6, r7, r8, r9, r10, r11}"),
        ("a8", "pop {r4, r14}"),
        ("af", "pop {r4, r5, r6, r7, r8, r9, r10, r11, r14}"),
        ("b1 0f", "pop {r0, r1, r2, r3}"),
        ("b1 08", "pop {r3}"),
        ("b2 00", "vsp = vsp + 516"),
        ("b2 81 04", "vsp = vsp + 2568"),
        ("b3 83", "pop {D8-D11}"),
        ("b8", "pop {D8}"),
        ("bf", "pop {D8-D15}"),
        ("c8 03", "pop {D16-D19}"),
        ("c9 83", "pop {D8-D11}"),
        ("d0", "pop {D8}"),
        ("d7", "pop {D8-D15}"),
        ("b0 ff", "finish"),
        ("97 42 ae", "vsp = r7|vsp = vsp - 12|pop {r4, r5, r6, r7, r8, r9, r10, r14}"),
        ("a3 97 a8", "pop {r4, r5, r6, r7}|vsp = r7|pop {r4, r14}"),  # r7 as popped
        ("82 00 a8", "pop {r13}|pop {r4, r14}"),
    ],
)
def test_instructions(code: str, text: str) -> None:
    data = bytes.fromhex(code)
    assert by_row(run(data)) == by_text([(data[0], words) for words in text.split("|")])


@pytest.mark.parametrize("code", ["9d", "9f", "b1 00", "b1 10", "b6", "c7 00", "c7 10", "ca", "d8", "e0", "ff", "81", "b1", "b2 80"])  # fmt: skip
def test_spare_and_cut_instructions_are_refused(code: str) -> None:
    with pytest.raises(BadCfiError):
        run(bytes.fromhex(code))


def index_of(*entries: tuple[int, int], code_end: int = 0x9000, extab: bytes = b"") -> ExidxSource:
    """Entries (function, second word; if that is a vaddr of extab at 0x6000: as it is) at 0x5000."""
    data = b""
    for function, word in entries:
        at = 0x5000 + len(data)
        if 0x6000 <= word < 0x7000:
            word = (word - at - 4) & 0x7FFFFFFF
        data += struct.pack("<II", (function - at) & 0x7FFFFFFF, word)
    return ExidxSource(data, 0x5000, code_end, lambda vaddr, size: extab[vaddr - 0x6000 :][:size])


def rows_at(source: ExidxSource, *vaddrs: int) -> list[UnwindRow | None]:
    arch = arch_by_name("arm32")
    assert arch is not None
    table = UnwindTable(arch, [source])
    return [table.row_at(vaddr) for vaddr in vaddrs]


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def test_entries_end_where_the_next_one_begins() -> None:
    source = index_of((0x1000, 0x80A8B0B0), (0x2000, 1), (0x3000, 0x80B0B0B0), code_end=0x4000)
    first, last_of_first, ends, leaf, outside = rows_at(source, 0x1000, 0x1FFF, 0x2000, 0x3FFF, 0x4000)
    assert first == last_of_first == run(b"\xa8") and leaf == run(b"") and outside is None
    assert ends is not None and ends.rules[0].kind is RuleKind.UNDEFINED


@pytest.mark.parametrize(
    ("extab", "program"),
    [
        (words(0x8001A8B0), "01a8b0"),
        (words(0x8101_B201, 0x02A8B0B0), "b20102a8b0b0"),  # personality 1: one more word
        (words(0x8202_9700, 0x01020304, 0xA8B0B0B0), "970001020304a8b0b0b0"),
        (words(0x7FFF0000, 0x01_97_42AE, 0xB0B0B0B0), "9742aeb0b0b0b0"),  # a routine of the language's own
    ],
)
def test_models_of_extab(extab: bytes, program: str) -> None:
    (row,) = rows_at(index_of((0x1000, 0x6000), extab=extab), 0x1000)
    assert row == run(bytes.fromhex(program))


@pytest.mark.parametrize("word", [0x81A8B0B0, 0xFFFFFFFF, 0x6000, 0x80FFB0B0])
def test_malformed_entries_differ_from_absent_ones(word: int) -> None:
    with pytest.raises(BadCfiError):
        rows_at(index_of((0x1000, word)), 0x1000)


def test_refusal_to_unwind_ends_the_stack() -> None:
    assert run(b"\x80\x00").rules[0].kind is RuleKind.UNDEFINED


def test_an_index_out_of_order_is_sorted() -> None:
    source = index_of((0x2000, 0x80A8B0B0), (0x1000, 0x80B0B0B0))
    assert rows_at(source, 0x1FFF, 0x2000) == [run(b""), run(b"\xa8")]


@settings(max_examples=400)
@given(st.binary(max_size=1100))
def test_random_programs_do_no_harm(code: bytes) -> None:
    try:
        row = run(code)
    except BadCfiError:
        return
    assert all(0 <= rule.register < 16 for rule in row.rules)
