"""Real stacks of code built in the ways that devices have it, each against the list that the program kept itself."""

from pathlib import Path

import pytest

from memleak_android.unwind import Method, TraceEnd
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotFrame
from tests.support.builders.self_capture import (
    APK_OFFSET,
    ARM32,
    ARM64,
    HOST,
    Capture,
    Change,
    capture,
    compress,
    drop_section_headers,
    keep,
    move_into_apk,
    pack_debug_frame,
    strip,
)

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


def test_a_capture_that_does_not_agree_is_noticed(tmp_path: Path) -> None:
    captured = capture(tmp_path, HOST, TABLES)
    captured.truth.insert(3, "compare")
    with pytest.raises(AssertionError):
        check(captured)
