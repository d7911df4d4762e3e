"""`unwind`: folders that are unusual, unfinished or made to mislead; and the corpus, frame by frame and letter by letter."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.builders.cfi_assembler import advance, op
from tests.support.builders.small_library import CODE_VADDR, FUNCTION, filled
from tests.support.command_line import Finished, Unwind
from tests.support.corpus import CASES, case_folder, expectation

BASE, STACK = 0x700000000000, 0x7FFF00001000
INNER, OUTER = BASE + CODE_VADDR + 0x10, BASE + CODE_VADDR + FUNCTION + 0x20
REGISTERS = f"rip: {INNER:x}\nrsp: {STACK:x}\nrbp: 0\n"
MAPS = f"{BASE:x}-{BASE + 0x9000:x} r-xp 00000000 00:00 0   /data/app/libtiny.so\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two frames: a function that pushed one word, and its caller, from which nothing returns."""
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "libtiny.so").write_bytes(filled([[advance(1), op(0x0E, 16)], [op(0x07, 16)]]))
    (folder / "regs.txt").write_text(REGISTERS)
    (folder / "maps.txt").write_text(MAPS)
    (folder / "stack.data").write_bytes(struct.pack("<QQQ", STACK, 0x1234, OUTER))
    return folder


def pcs(done: Finished) -> list[int]:
    assert done.code == 0, done.err
    return [int(frame["pc"], 16) for frame in json.loads(done.out)["frames"]]


def refused(done: Finished, line: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1 and line in done.err


def test_the_plain_folder(unwind: Unwind, folder: Path) -> None:
    done = unwind(folder, "--json")
    result = json.loads(done.out)
    assert done.err == ""
    assert (result["schema"], result["arch"], result["end"]) == ("memleak-android/unwind/1", "x86_64", "ROOT")
    first, second = result["frames"]
    assert first["method"] == "registers" and second["method"] == "eh_frame"
    assert (first["index"], first["pc"], first["sp"]) == (0, hex(INNER), hex(STACK))
    assert (second["pc"], second["rel_pc"], second["sp"]) == (
        hex(OUTER - 1),
        hex(OUTER - 1 - BASE),
        hex(STACK + 16),
    )
    assert second["function"] is second["function_offset"] is None
    assert second["map_name"] == "/data/app/libtiny.so"


def as_other_systems_write_text(folder: Path) -> None:
    """CRLF, a byte order mark, blank lines, capitals, 0x."""
    text = REGISTERS.upper().replace(": ", " : 0x").replace("\n", "\r\n\r\n")
    (folder / "regs.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (folder / "maps.txt").write_bytes(("\r\n" + MAPS).replace("\n", "\r\n").encode())


def with_a_map_that_ends_with_its_last_byte(folder: Path) -> None:
    (folder / "maps.txt").write_text(MAPS.replace(f"{BASE + 0x9000:x}", f"{BASE + 0x8FFF:x}"))


def with_a_stack_in_pieces(folder: Path) -> None:
    data = (folder / "stack.data").read_bytes()
    (folder / "stack.data").unlink()
    (folder / "stack1.data").write_bytes(data[:16])
    (folder / "stack0.data").write_bytes(struct.pack("<Q", STACK + 8) + data[16:])


def with_a_link_within(folder: Path) -> None:
    (folder / "libtiny.so").rename(folder / "common.so")
    (folder / "libtiny.so").symlink_to("common.so")


def with_a_memory_file_that_a_loader_names(folder: Path) -> None:
    """Such a file may begin with its address."""
    (folder / "stack.data").rename(folder / "dump.bin")
    (folder / "loader.json").write_text('{"loader": {"extra_memory": [{"file": "dump.bin"}]}}')


@pytest.mark.parametrize(
    "change",
    [
        as_other_systems_write_text,
        with_a_map_that_ends_with_its_last_byte,
        with_a_stack_in_pieces,
        with_a_link_within,
        with_a_memory_file_that_a_loader_names,
    ],
)
def test_the_same_folder_in_another_form(
    unwind: Unwind, folder: Path, change: Callable[[Path], None]
) -> None:
    plain = unwind(folder, "--json").out
    change(folder)
    (folder.parent / "link").symlink_to(folder)  # a folder reached by a link is that folder
    loader = folder / "loader.json"
    options = ("--loader", str(loader)) if loader.exists() else ()
    assert unwind(folder.parent / "link", "--json", *options).out == plain


def test_a_file_that_was_deleted_while_it_was_mapped(unwind: Unwind, folder: Path) -> None:
    (folder / "maps.txt").write_text(MAPS.replace(".so", ".so (deleted)"))
    assert pcs(unwind(folder, "--json")) == [INNER, OUTER - 1]


@pytest.mark.parametrize("name", ["stack.data", "libtiny.so"])
def test_what_is_missing_costs_frames_and_no_more(unwind: Unwind, folder: Path, name: str) -> None:
    (folder / name).unlink()
    done = unwind(folder, "--json")
    assert pcs(done) == [INNER]
    assert json.loads(done.out)["end"] == {"stack.data": "STACK_TRUNCATED"}.get(name, "NO_UNWIND_ROW")


def test_unknown_registers_are_named_and_not_used(unwind: Unwind, folder: Path) -> None:
    plain = unwind(folder, "--json").out
    (folder / "regs.txt").write_text(REGISTERS + "gs_base: 246\nfs_base: 7f00\n")
    done = unwind(folder, "--json")
    assert done.out == plain
    assert done.err.splitlines() == ["memleak-android: unknown registers of x86_64: gs_base, fs_base"]


@pytest.mark.parametrize(
    ("file", "content", "options", "line"),
    [
        ("regs.txt", None, (), "regs.txt"),
        ("regs.txt", "", (), "it names no register"),
        ("regs.txt", "pc 12\n", (), "line 1 is not a register"),
        ("regs.txt", "rip: -1\n", (), "line 1 is not a register"),
        ("regs.txt", "rip: 10000000000000000\n", (), "line 1 is not a register"),
        ("regs.txt", "zz: 2\n", (), "no architecture"),
        ("regs.txt", "rsp: 1\n", (), "no rip, which x86_64 needs"),
        ("regs.txt", REGISTERS, ("--arch", "arm64"), "no pc, which arm64 needs"),
        ("regs.txt", "pc: 700000001010\nsp: 7fff00001000\n", ("--arch", "arm32"), "more than arm32 holds"),
        ("maps.txt", None, (), "maps.txt"),
        ("maps.txt", "1000-0 r-xp 0 00:00 0 a\n", (), "line 1 is not a mapping"),
        ("maps.txt", "elephants\n", (), "line 1 is not a mapping"),
        ("stack.data", "1234", (), "no start address"),
    ],
)
def test_files_that_cannot_be_used(
    unwind: Unwind, folder: Path, file: str, content: str | None, options: tuple[str, ...], line: str
) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    refused(unwind(folder, *options), line)


def test_registers_of_32_bits_among_mappings_of_64(unwind: Unwind, folder: Path) -> None:
    """The names are of two architectures; the file at the pc says which, without one the width does."""
    (folder / "regs.txt").write_text("pc: 1010\nsp: 2000\nlr: 0\n")
    assert json.loads(unwind(folder, "--json").out)["arch"] == "arm32"
    (folder / "regs.txt").write_text("pc: 700000001010\nsp: 2000\nlr: 0\n")
    assert json.loads(unwind(folder, "--json").out)["arch"] == "arm64"


def test_a_link_that_leads_out_is_not_a_file(unwind: Unwind, folder: Path) -> None:
    (folder / "libtiny.so").rename(folder.parent / "common.so")
    (folder / "libtiny.so").symlink_to("../common.so")
    done = unwind(folder, "--json")
    assert pcs(done) == [INNER]
    assert done.err.splitlines() == [
        "memleak-android: could not read links that leave the folder: libtiny.so; put the files there"
    ]


@pytest.mark.parametrize("name", ["regs.txt", "maps.txt", "stack.data"])
@pytest.mark.parametrize("kind", ["out", "loop", "device", "pipe", "folder"])
def test_paths_outside_the_folder_are_not_read(unwind: Unwind, folder: Path, name: str, kind: str) -> None:
    path = folder / name
    if kind == "out":
        path.rename(folder.parent / name)
        path.symlink_to(folder.parent / name)
    else:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(path if kind == "loop" else "/dev/zero")
    refused(unwind(folder), name)


def test_nothing_is_written_into_the_folder(unwind: Unwind, folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    folder.chmod(0o555)
    assert unwind(folder).code == 0
    assert {path.name: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before


def test_a_dash_is_not_a_folder(unwind: Unwind, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    refused(unwind(Path("-")), "")


@pytest.mark.parametrize(
    "options",
    [
        ("--pac-mask", "much"),
        ("--extra-memory", "stack.data"),
        ("--extra-memory", "../../etc/passwd@0"),
        ("--extra-map", "1-2"),
        ("--extra-map", "2-1:r-x:0:a"),
        ("--memory-file", "/etc/passwd"),
        ("--loader", "maps.txt"),
    ],
)
def test_bad_options_give_one_line(
    unwind: Unwind, folder: Path, options: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    refused(unwind(folder, *options), "")


KEYS = ("pc", "sp", "rel_pc", "function", "function_offset", "map_name", "soname", "elf_start_offset")
# null in an expectation says that it has none; of the others, that there is none
MAY_BE_UNKNOWN = ("pc", "sp")


@pytest.mark.parametrize("name", CASES)
def test_every_pinned_frame(unwind: Unwind, name: str) -> None:
    """In the JSON, and in the text, which is what Android prints."""
    folder = case_folder(name)
    expected = expectation(folder)
    options = ("--like-libunwindstack", "--loader", str(folder / "expected.json"))
    done = unwind(folder, "--json", *options)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["schema"] == "memleak-android/unwind/1"
    assert result["arch"] == expected["arch"]
    assert [frame["index"] for frame in result["frames"]] == list(range(len(expected["frames"])))
    for found, pinned in zip(result["frames"], expected["frames"], strict=True):
        wanted = {k: pinned[k] for k in KEYS if pinned[k] is not None or k not in MAY_BE_UNKNOWN}
        assert {k: found[k] for k in wanted} == wanted
    assert unwind(folder, *options).out.splitlines() == (folder / "output.txt").read_text().splitlines()


JIT_MAPS = (
    "0xd025c788-0xd025c9f0:r-x,JIT_SYMFILE:0:jit_map0.so",
    "0xd025cd98-0xd025cff4:r-x,JIT_SYMFILE:0:jit_map1.so",
)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "apk_rx_unreadable_arm64",
            ("--memory-file", "stack.data", "--extra-memory", "fake.apk@0x7cb0e62000:0x4000:0x1000"),
        ),
        ("jit_map_arm", tuple(word for text in JIT_MAPS for word in ("--extra-map", text))),
    ],
)
def test_options_say_what_a_loader_file_says(unwind: Unwind, name: str, options: tuple[str, ...]) -> None:
    folder = case_folder(name)
    by_file = unwind(folder, "--json", "--loader", str(folder / "expected.json"))
    assert unwind(folder, "--json", *options).out == by_file.out != unwind(folder, "--json").out


def test_an_unfinished_stack_says_why(unwind: Unwind) -> None:
    done = unwind(case_folder("straddle_arm64"))
    assert done.code == 0
    assert "STACK_TRUNCATED" in done.err
