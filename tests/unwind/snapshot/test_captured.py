"""Real stacks of code built in the ways that devices have it, each against the list that the program kept itself."""

import lzma
import shutil
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from memleak_android.unwind import Method, TraceEnd
from memleak_android.unwind.engine.library import library_path, load
from memleak_android.unwind.maps import Mapping
from memleak_android.unwind.snapshot.files import read_mappings
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotFrame
from memleak_android.unwind.walk.batch import BatchUnwinder, unwind_batch
from memleak_android.unwind.walk.plan import Planner
from memleak_android.unwind.walk.step import unwind_sample
from tests.support.corpus import CASES, case_folder, expectation, options_of
from tests.support.stack_capture import repeated

SOURCE = Path(__file__).parents[2] / "support" / "programs" / "self_capture.c"
APK_OFFSET = 0x5000
_FLAGS = ("-O2", "-std=gnu17", "-fno-optimize-sibling-calls", "-w")
Change = Callable[["Toolchain", Path], None]


@dataclass(frozen=True)
class Toolchain:
    """prefix: of the compiler and its binutils. emulator: what runs its programs elsewhere."""

    prefix: str = ""
    emulator: tuple[str, ...] = ()

    def run(self, tool: str, *words: object) -> None:
        subprocess.run([self.prefix + tool, *map(str, words)], check=True, capture_output=True)


HOST = Toolchain()
ARM64 = Toolchain("aarch64-linux-gnu-", ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"))
ARM32 = Toolchain("arm-linux-gnueabihf-", ("qemu-arm-static", "-L", "/usr/arm-linux-gnueabihf"))


@dataclass(frozen=True)
class Capture:
    """A folder as `unwind` reads it. truth: functions of the program, innermost first."""

    folder: Path
    truth: list[str]
    _symbols: list[tuple[int, int, str]]

    def functions(self, frames: Sequence[SnapshotFrame]) -> list[str]:
        """Names of the frames in the program's own functions, by the symbols that stripping removed.

        Libraries are left out, also those linked in statically.
        """
        own = [f for f in frames if f.mapping is not None and Path(f.mapping.path).stem == "program"]
        return [name for name in map(self._name, (f.rel_pc for f in own)) if name in self.truth]

    def _name(self, vaddr: int) -> str:
        at = bisect_right(self._symbols, (vaddr, 1 << 64, "")) - 1
        start, size, name = self._symbols[at]
        return name if 0 <= vaddr - start < size else f"nothing at {vaddr:#x}"


def capture(
    tmp_path: Path, toolchain: Toolchain, flags: Sequence[str], change: Change | None = None
) -> Capture:
    """Compiles, changes the file, runs it. Skips the test where the compiler or its emulator is absent."""
    for tool in (toolchain.prefix + "gcc", *toolchain.emulator[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program, folder = tmp_path / "program", tmp_path / "case"
    folder.mkdir()
    toolchain.run("gcc", *_FLAGS, *flags, "-o", program, SOURCE)
    symbols = _symbols(program)
    (change or strip)(toolchain, program)
    subprocess.run([*toolchain.emulator, program, folder], check=True, timeout=60)
    for mapping in read_mappings(folder):
        if mapping.path.startswith("/") and not mapping.path.endswith(".cache"):
            shutil.copyfile(mapping.path, folder / Path(mapping.path).name)
    return Capture(folder, (folder / "truth.txt").read_text().split(), symbols)


def _symbols(program: Path) -> list[tuple[int, int, str]]:
    with program.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert table is not None
        functions = [s for s in table.iter_symbols() if s["st_info"]["type"] == "STT_FUNC"]
        return sorted((s["st_value"] & ~1, s["st_size"], s.name) for s in functions)


def strip(toolchain: Toolchain, program: Path) -> None:
    """Symbols and debugging sections go."""
    toolchain.run("strip", program)


def keep(toolchain: Toolchain, program: Path) -> None:
    """Nothing goes."""


def compress(form: str) -> Change:
    """Debugging sections are compressed: zlib (SHF_COMPRESSED), zlib-gnu (.zdebug_*)."""
    return lambda toolchain, program: toolchain.run("objcopy", f"--compress-debug-sections={form}", program)


def pack_debug_frame(toolchain: Toolchain, program: Path) -> None:
    """.debug_frame goes into .gnu_debugdata, as Android packs its mini debug info."""
    inner = program.with_suffix(".debug")
    toolchain.run("objcopy", "--only-keep-debug", program, inner)
    toolchain.run("strip", "--keep-section=.debug_frame", "--strip-debug", inner)
    packed = program.with_suffix(".xz")
    packed.write_bytes(lzma.compress(inner.read_bytes()))
    toolchain.run("objcopy", "--strip-all", f"--add-section=.gnu_debugdata={packed}", program)


def drop_section_headers(toolchain: Toolchain, program: Path) -> None:
    """As packers leave files (Elf64_Ehdr: e_shoff at 40, e_shnum and e_shstrndx at 60; Elf32_Ehdr: 32, 48)."""
    image = bytearray(program.read_bytes())
    for start, end in ((40, 48), (60, 64)) if image[4] == 2 else ((32, 36), (48, 52)):
        image[start:end] = bytes(end - start)
    program.write_bytes(image)


def move_into_apk(folder: Path, *, only_in_memory: bool = False) -> None:
    """The program as a part of a larger file; that file may be missing, and what was mapped of it captured."""
    elf = (folder / "program").read_bytes()
    (folder / "program").unlink()
    lines = []
    for number, m in enumerate(read_mappings(folder)):
        if Path(m.path).name == "program":
            if only_in_memory:
                _write_memory(folder / f"image{number}.data", m, elf)
            m = Mapping(m.start, m.end, m.permissions, m.file_offset + APK_OFFSET, m.path + ".apk")
        lines.append(f"{m.start:x}-{m.end:x} {m.permissions} {m.file_offset:x} 0:0 0 {m.path}\n")
    (folder / "maps.txt").write_text("".join(lines))
    if not only_in_memory:
        (folder / "program.apk").write_bytes(bytes(APK_OFFSET) + elf + b"PK")


def _write_memory(path: Path, mapping: Mapping, file: bytes) -> None:
    shown = file[mapping.file_offset :][: mapping.end - mapping.start]
    path.write_bytes(struct.pack("<Q", mapping.start) + shown)


TABLES = ("-fasynchronous-unwind-tables", "-funwind-tables")
NO_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions")
DEBUG_FRAME = (*NO_TABLES, "-g")
# name → flags, change, by which means the frames of the program are found
KINDS: dict[str, tuple[tuple[str, ...], Change, Method]] = {
    "stripped": (TABLES, strip, Method.EH_FRAME),
    "at a fixed address": ((*TABLES, "-no-pie"), strip, Method.EH_FRAME),
    "static": ((*TABLES, "-static"), strip, Method.EH_FRAME),
    "pointers of the compiler's choice": (
        (*TABLES, "-fno-dwarf2-cfi-asm", "-no-pie"),
        strip,
        Method.EH_FRAME,
    ),
    "no search table": ((*TABLES, "-Wl,--no-eh-frame-hdr"), strip, Method.EH_FRAME),
    "no section headers": (TABLES, drop_section_headers, Method.EH_FRAME),
    "debug_frame": (DEBUG_FRAME, keep, Method.DEBUG_FRAME),
    "compressed": (DEBUG_FRAME, compress("zlib"), Method.DEBUG_FRAME),
    "compressed by zstd": (DEBUG_FRAME, compress("zstd"), Method.DEBUG_FRAME),
    "compressed, older form": (DEBUG_FRAME, compress("zlib-gnu"), Method.DEBUG_FRAME),
    "mini debug info": (DEBUG_FRAME, pack_debug_frame, Method.DEBUGDATA),
    "frame pointers only": ((*NO_TABLES, "-fno-omit-frame-pointer"), strip, Method.PROLOGUE),
    "no tables, no frame pointers": ((*NO_TABLES, "-fomit-frame-pointer"), strip, Method.PROLOGUE),
}
SIGNALS = {"a fault": "-DFAULT", "a call to nowhere": "-DNULL_CALL"}
CAPTURES = {"in an APK": False, "in memory only": True}


def check(captured: Capture) -> list[SnapshotFrame]:
    """The frames, which are those that the program says it is in, down to the thread's start."""
    frames, end = Snapshot(captured.folder).unwind()
    assert captured.functions(frames) == captured.truth
    assert len(captured.truth) >= 10 and end is TraceEnd.ROOT
    return frames


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_every_kind(tmp_path: Path, kind: str) -> None:
    flags, change, method = KINDS[kind]
    frames = check(capture(tmp_path, HOST, flags, change))
    assert frames[1].method is method  # who called the function that captured


@pytest.mark.parametrize("tables", [TABLES, NO_TABLES], ids=["tables", "none"])
@pytest.mark.parametrize("signal", SIGNALS)
def test_signals_on_a_stack_of_their_own(tmp_path: Path, signal: str, tables: tuple[str, ...]) -> None:
    captured = capture(tmp_path, HOST, (*tables, SIGNALS[signal]))
    assert captured.truth[:3] == ["capture", "handler", "leaf"]
    assert [f.method for f in check(captured)].count(Method.SIGNAL) == 1


@pytest.mark.parametrize("kind", CAPTURES)
@pytest.mark.parametrize("flags", [TABLES, NO_TABLES], ids=["tables", "none"])
def test_where_the_file_is_part_of_another(tmp_path: Path, flags: tuple[str, ...], kind: str) -> None:
    captured = capture(tmp_path, HOST, flags)
    move_into_apk(captured.folder, only_in_memory=CAPTURES[kind])
    frames = check(captured)
    assert frames[0].elf is not None and frames[0].elf.start_offset == APK_OFFSET
    assert frames[0].elf.from_memory == CAPTURES[kind]


ELSEWHERE = {
    "arm64": (ARM64, {**KINDS, "signed": ((*TABLES, "-mbranch-protection=standard"), strip, Method.EH_FRAME)}),
    "arm32": (ARM32, {**KINDS, "arm": ((*TABLES, "-marm"), strip, Method.EXIDX)}),
}  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize(("arch", "kind"), [(a, k) for a, (_, kinds) in ELSEWHERE.items() for k in kinds])
def test_other_architectures(tmp_path: Path, arch: str, kind: str) -> None:
    toolchain, kinds = ELSEWHERE[arch]
    flags, change, method = kinds[kind]
    frames = check(capture(tmp_path, toolchain, flags, change))
    assert frames[1].method in ({method, Method.EXIDX} if arch == "arm32" else {method})


@pytest.mark.parametrize("name", CASES)
def test_the_lock_step_and_the_scalar_unwinder_agree(name: str) -> None:
    folder = case_folder(name)
    snapshot = Snapshot(folder, options_of(expectation(folder)))
    samples = replace(snapshot.sample(), extra_memory=None)
    frames, end = unwind_sample(samples, 0, Planner(snapshot.arch, [snapshot.space], snapshot), 1024)
    for engine in (None, library_path()):
        traces = BatchUnwinder([snapshot.space], snapshot, engine=engine).unwind(samples)
        columns = (traces.address, traces.sp, traces.is_return, traces.method)
        assert list(zip(*(c.tolist() for c in columns), strict=True)) == [tuple(f) for f in frames]
        assert traces.end.tolist() == [end]


def test_what_a_signal_interrupted_is_looked_up_where_it_was() -> None:
    """Only as the other unwinder's rule is its pc reduced."""
    folder = case_folder("offset_arm")
    options = replace(options_of(expectation(folder)), like_libunwindstack=False)
    frames, _ = Snapshot(folder, options).unwind()
    assert [f.lookup for f in frames if f.method.name == "SIGNAL"] == [0]


def test_a_stack_alone_is_cut_where_the_other_stack_begins() -> None:
    folder = case_folder("offset_arm")
    options = replace(options_of(expectation(folder)), memory_files=("stack0.data",))
    frames, _ = Snapshot(folder, options).unwind()
    assert 4 < len(frames) < len(expectation(folder)["frames"])


@pytest.mark.parametrize("name", ["straddle_arm64", "photos_reset_arm64"])
def test_frame_by_frame_a_shorter_slice_gives_a_prefix(name: str) -> None:
    folder = case_folder(name)
    snapshot = Snapshot(folder, options_of(expectation(folder)))
    samples = replace(snapshot.sample(), extra_memory=None)
    whole = unwind_batch(samples, [snapshot.space], snapshot).address.tolist()
    lengths = np.arange(0, int(samples.stack_length[0]), 72)
    cut = replace(repeated(samples, len(lengths)), stack_length=lengths)
    traces = unwind_batch(cut, [snapshot.space], snapshot)
    assert len(traces) == len(lengths)
    for begin, end in pairwise(traces.offsets.tolist()):
        part = traces.address[begin:end].tolist()
        assert part == whole[: len(part)] and len(part)


@pytest.mark.parametrize(
    "name", ["photos_reset_arm64", "apk_rx_arm64", "bluetooth_arm64__pc_4", "straddle_arm", "jit_map_arm"]
)
def test_common_stacks_need_no_slow_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaf functions, interpreter frames, exidx: all by the engine, as the scalar unwinder finds them."""
    if load(library_path()) is None:
        pytest.skip("no compiled engine for this machine (make device builds it)")
    folder = case_folder(name)
    snapshot = Snapshot(folder, options_of(expectation(folder)))
    samples = replace(snapshot.sample(), extra_memory=None)
    frames, _ = unwind_sample(samples, 0, Planner(snapshot.arch, [snapshot.space], snapshot), 1024)

    def refuse(*arguments: object) -> None:
        raise AssertionError("stepped one by one")

    monkeypatch.setattr("memleak_android.unwind.walk.batch.unwind_one_by_one", refuse)
    traces = BatchUnwinder([snapshot.space], snapshot).unwind(samples)
    assert traces.address.tolist() == [frame.address for frame in frames]
