"""LeakSanitizer's suppressions: its matching, its files, what is generated."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.suppressions import (
    Suppressions,
    matches,
    parse_suppressions,
    read_suppressions,
    template_of,
)
from tests.support.builders.profiles import CODEC, DECODE, LIBC, MALLOC, SERVER, START, frame
from tests.support.oracles.symbols import need

# As a public project's file looks: other sanitizers' types, blanks, CRLF, comments.
FILE = (
    "# comment\r\n\r\nleak:libcodec.so\r\n  leak:^planted::*Packet\n"
    "race:whatever\ncalled_from_lib:libx.so\nleak:libcodec.so\n"
)

# Template, name, whether LeakSanitizer's TemplateMatch takes it (compiler-rt, sanitizer_common.cpp).
CASES = [
    ("decode", "planted::decode(int)", True),
    ("^decode", "planted::decode(int)", False),
    ("^planted", "planted::decode(int)", True),
    ("decode$", "decode(int)", False),
    ("int)$", "decode(int)", True),
    ("^decode$", "decode", True),
    ("^decode$", "decode2", False),
    ("a*b", "xaxbx", True),
    ("a*b", "xbxax", False),
    ("^a*b$", "a--b", True),
    ("^a*b$", "a--bc", False),
    ("^*b$", "a--b", True),
    ("foo*$", "xfoo--", True),
    ("$", "x", False),
    ("*", "x", True),
    ("*", "", False),
    ("oo$", "oo-oo", False),  # the first match counts, without backtracking, as in theirs
]


@pytest.mark.parametrize(("template", "name", "expected"), CASES)
def test_matching(template: str, name: str, expected: bool) -> None:
    assert matches(template, name) is expected


def test_matching_as_leak_sanitizer_does(tmp_path: Path) -> None:
    """Its own runtime decides, over a program whose leaking function has the name."""
    templates = ("decode", "^decode", "ode2$", "^decode$", "^x*x$", "d*2", "nothing", "supp.c", "^supp")
    for name in ("decode", "xdecode2"):
        program = leaking_program(tmp_path / "supp", name)
        frames = [frame(SERVER, name, source=f"{program}.c:2"), frame(SERVER, "main"), *START]
        frames = [MALLOC, *(replace(one, module=str(program)) for one in frames[:2]), *frames[2:]]
        for template in templates:
            is_suppressed = not leak_sanitizer_objects(program, template)
            assert is_suppressed is bool(Suppressions([template]).find(frames)), (template, name)


SOURCE = """
#include <stdlib.h>
__attribute__((noinline)) void %s(void) { *(void *volatile *)malloc(61) = 0; }
int main(void) { %s(); return 0; }
"""


def leaking_program(path: Path, function: str) -> Path:
    path.with_suffix(".c").write_text(SOURCE % (function, function))
    words = [need("gcc"), "-fsanitize=leak", "-g", "-o", path, path.with_suffix(".c")]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("gcc has no leak sanitizer here")
    if not leak_sanitizer_objects(path, "nothing-at-all"):
        pytest.skip("LeakSanitizer cannot run here (ptrace)")
    return path


def leak_sanitizer_objects(program: Path, template: str) -> bool:
    """Whether it objects to the program's leak, with one suppression; 23 is its exit code."""
    file = program.with_suffix(".txt")
    file.write_text(f"leak:{template}\n")
    environment = {**os.environ, "LSAN_OPTIONS": f"suppressions={file}"}
    return subprocess.run([program], capture_output=True, env=environment, check=False).returncode == 23


def test_a_file_of_others_is_taken_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "lsan.supp"
    path.write_bytes(FILE.encode())
    assert read_suppressions(path) == ("libcodec.so", "^planted::*Packet")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("leak:a\nnonsense\n", "x.supp:2: 'nonsense' is not a suppression; write leak:PATTERN"),
        ("leak:\n", "x.supp:1: 'leak:' is not a suppression; write leak:PATTERN"),
        ("{\n   insert_a_name\n", "x.supp:1: '{' is not a suppression; write leak:PATTERN"),
        ("\x1b[2J" + "y" * 10_000, "x.supp:1: '\\x1b[2J" + "y" * 56 + "' is not a suppression; write leak:PATTERN"),
    ],
)  # fmt: skip
def test_errors_are_one_line(text: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_suppressions(text, "x.supp")
    assert str(caught.value) == line


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_suppressions(tmp_path / "missing")
    (tmp_path / "large").write_bytes(b"leak:a\n" * 200_000)
    with pytest.raises(UsageError, match="is larger than 1,048,576 bytes"):
        read_suppressions(tmp_path / "large")


def test_functions_modules_and_files_are_looked_at() -> None:
    for template in ("planted::decode", "libc.so", "src/main.cc"):
        assert Suppressions(["nothing", template]).find(DECODE.frames) == template
    assert Suppressions(["codec"]).find(DECODE.frames) == ""


def test_hostile_templates_and_names_cost_linear_time() -> None:
    begin = time.process_time()
    assert Suppressions(["a*" * 2000 + "b"]).find([frame(SERVER, "a" * 1_000_000)]) == ""
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize(
    "function",
    [
        "decode",
        "f(char*, int (*)(int))",
        "main::$_0::operator()(int) const",
        "operator*(A, A)",
        "A::operator^(int)",
        "x\x1b[2Jy\n",
        "y" * 10_000,
        "g(x*x)x)",
    ],
)
def test_what_is_generated_matches_its_function_and_is_one_line(function: str) -> None:
    template = template_of(frame(SERVER, function))
    assert matches(template, function[:4096])
    assert parse_suppressions(f"leak:{template}\n", "x") == (template,)
    assert not matches(template, "another")


def test_nameless_code_is_suppressed_by_its_module() -> None:
    template = template_of(frame(CODEC, ""))
    assert matches(template, CODEC)
    assert not matches(template, LIBC)
