"""--mine, --not-mine and memleak.toml: whose code a frame is, and which frame answers then."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.ownership import FILE_NAME, Owner, Ownership, read_ownership
from memleak_android.host.profile.profile import Frame
from tests.support.builders.profiles import CODEC, LIBC, MALLOC, SERVER, START, frame

HANDLER = frame(SERVER, "handle_request(int)", 0x10, "/src/app/main.cc:14")
VENDORED = frame(SERVER, "parse(char const*)", 0x20, "/src/app/third_party/json.cc:3")


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("src/app", True),
        ("app/", True),
        ("third_party/json.cc", True),
        ("*.cc", True),
        ("json.cc", True),
        ("/src/app", True),
        ("/app", False),
        ("ap", False),
        ("son.cc", False),
        (Path(SERVER).name, True),
        (Path(SERVER).name[1:], False),
    ],
)
def test_a_pattern_names_a_file_a_module_or_a_folder(pattern: str, fits: bool) -> None:
    owner = Ownership(mine=(pattern,)).owner(VENDORED.module, VENDORED.file)
    assert owner is (Owner.MINE if fits else None)


def test_the_longest_pattern_decides() -> None:
    ownership = Ownership(mine=("src", "third_party/json.cc"), not_mine=("src/app/third_party",))
    assert ownership.owner("", "/src/app/main.cc") is Owner.MINE
    assert ownership.owner("", "/src/app/third_party/zlib.c") is Owner.OTHERS
    assert Ownership(mine=("third_party/json.cc",), not_mine=("app",)).owner("", VENDORED.file) is Owner.MINE


def owned(*frames: Frame, by: Ownership) -> Frame | None:
    return responsible_frame([replace(each, owner=by.owner(each.module, each.file)) for each in frames])


def test_my_innermost_function_answers_else_the_innermost_that_is_not_another_s() -> None:
    stack = (MALLOC, frame(CODEC, "decode"), VENDORED, HANDLER, *START)
    assert owned(*stack, by=Ownership()) == stack[1]
    for rules in (Ownership(mine=("main.cc",)), Ownership(not_mine=(Path(CODEC).name, "third_party"))):
        answering = owned(*stack, by=rules)
        assert answering is not None and answering.function == HANDLER.function
    assert owned(*stack, by=Ownership(mine=("elsewhere",))) == stack[1]
    library = frame(LIBC, "fopen")  # a system library may be mine; an allocator never answers
    mine = owned(MALLOC, library, HANDLER, by=Ownership(mine=(Path(LIBC).name,)))
    assert mine is not None and mine.function == "fopen"


def test_the_project_file_is_read_up_to_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_text('mine = ["outside"]')
    inner = tmp_path / "repository" / "src" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert read_ownership((), ()) == Ownership((), ())
    (tmp_path / "repository" / ".git").mkdir()
    assert read_ownership((), ()) == Ownership((), ())
    (tmp_path / "repository" / FILE_NAME).write_text('mine = ["src"]\nnot-mine = ["src/third_party"]')
    assert read_ownership(("lib.so",), ()) == Ownership(("lib.so", "src"), ("src/third_party",))
    (inner / FILE_NAME).write_text("mine = []")
    assert read_ownership((), ("a",)) == Ownership((), ("a",))


@pytest.mark.parametrize(
    "text", ["mine = 3", "mime = []", "mine = [", "[tool]\nmine = []", "mine = [\udc80]"]
)
def test_a_project_file_that_says_something_else_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=FILE_NAME):
        read_ownership((), ())


def test_another_user_s_project_file_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE_NAME).write_text('mine = ["src"]')
    monkeypatch.chdir(tmp_path)
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    else:
        os.chown(FILE_NAME, 4242, 4242)
    assert read_ownership((), ()) == Ownership((), ())
