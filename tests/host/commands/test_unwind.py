"""`unwind`: the corpus by its command line, frame by frame and letter by letter."""

import json

import pytest

from tests.support.command_line import Unwind
from tests.support.corpus import CASES, case_folder, expectation

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
