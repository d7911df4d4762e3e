"""`unwind`: the corpus by its command line, frame by frame and letter by letter, and folders that are no good."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import Unwind
from tests.support.corpus import CASES, case_folder, expectation

KEYS = ("pc", "sp", "rel_pc", "function", "function_offset", "map_name", "soname", "elf_start_offset")
MAY_BE_UNKNOWN = (
    "pc",
    "sp",
)  # null in an expectation says that it has none; of the others, that there is none


@pytest.mark.parametrize("name", CASES)
def test_json_holds_every_pinned_frame(unwind: Unwind, name: str) -> None:
    folder = case_folder(name)
    expected = expectation(folder)
    done = unwind(folder, "--json", "--like-libunwindstack", "--loader", str(folder / "expected.json"))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["schema"] == "memleak-android/unwind/1"
    assert result["arch"] == expected["arch"]
    assert [frame["index"] for frame in result["frames"]] == list(range(len(expected["frames"])))
    for found, pinned in zip(result["frames"], expected["frames"], strict=True):
        wanted = {k: pinned[k] for k in KEYS if pinned[k] is not None or k not in MAY_BE_UNKNOWN}
        assert {k: found[k] for k in wanted} == wanted


@pytest.mark.parametrize("name", CASES)
def test_text_is_what_android_prints(unwind: Unwind, name: str) -> None:
    folder = case_folder(name)
    done = unwind(folder, "--like-libunwindstack", "--loader", str(folder / "expected.json"))
    assert done.out.splitlines() == (folder / "output.txt").read_text().splitlines()


def test_options_say_what_a_loader_file_says(unwind: Unwind) -> None:
    folder = case_folder("apk_rx_unreadable_arm64")
    by_file = unwind(folder, "--json", "--loader", str(folder / "expected.json"))
    extra = "fake.apk@0x7cb0e62000:0x4000:0x1000"
    by_options = unwind(folder, "--json", "--memory-file", "stack.data", "--extra-memory", extra)
    assert by_options.out == by_file.out
    assert by_options.out != unwind(folder, "--json").out


def test_extra_maps_are_options_too(unwind: Unwind) -> None:
    folder = case_folder("jit_map_arm")
    by_file = unwind(folder, "--loader", str(folder / "expected.json"))
    maps = (
        "0xd025c788-0xd025c9f0:r-x,JIT_SYMFILE:0:jit_map0.so",
        "0xd025cd98-0xd025cff4:r-x,JIT_SYMFILE:0:jit_map1.so",
    )
    by_options = unwind(folder, *(word for text in maps for word in ("--extra-map", text)))
    assert by_options.out == by_file.out


def test_an_unfinished_stack_says_why(unwind: Unwind) -> None:
    done = unwind(case_folder("straddle_arm64"))
    assert done.code == 0
    assert "STACK_TRUNCATED" in done.err


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("regs.txt", None, "regs.txt"),
        ("regs.txt", "pc 12\n", "line 1 is not a register"),
        ("regs.txt", "", "it names no register"),
        ("regs.txt", "zz: 2\n", "no architecture"),
        ("maps.txt", None, "maps.txt"),
        ("maps.txt", "1000-0 r-xp 0 00:00 0 a\n", "line 1 is not a mapping"),
        ("maps.txt", "elephants\n", "line 1 is not a mapping"),
        ("stack.data", b"1234", "no start address"),
    ],
)
def test_a_bad_folder_gives_one_line(
    unwind: Unwind, tmp_path: Path, file: str, content: str | bytes | None, line: str
) -> None:
    (tmp_path / "regs.txt").write_text("pc: 1000\nsp: 2000\nx29: 0\n")
    (tmp_path / "maps.txt").write_text("1000-2000 r-xp 0 00:00 0 a\n")
    (tmp_path / "stack.data").write_bytes((0x2000).to_bytes(8, "little") + bytes(64))
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = unwind(tmp_path)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1 and line in done.err


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
def test_bad_options_give_one_line(unwind: Unwind, tmp_path: Path, options: tuple[str, str]) -> None:
    folder = case_folder("invalid_elf_offset_arm")
    shutil.copytree(folder, tmp_path / "case")
    given = [str(tmp_path / "case" / word) if word == "maps.txt" else word for word in options]
    done = unwind(tmp_path / "case", *given)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
