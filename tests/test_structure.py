"""The house rules that a machine can check: sizes, names, licence lines, who may import whom."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("host", "unwind", "device", "ndk-build", "tests", ".ci")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PYTHON_FILES, MAX_C_FILES, MIN_FILES = 25, 35, 3
VAGUE_NAMES = {"manager", "helper", "helpers", "util", "utils", "common", "misc", "shared", "base_classes"}
LICENCES = {"device/bpf": {"GPL-2.0-only", "BSD-2-Clause"}, "": {"Apache-2.0"}}  # each offers at least these


def files(*suffixes: str) -> Iterator[Path]:
    return (path for path in all_files() if path.suffix in suffixes)


@functools.cache
def all_files() -> list[Path]:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file())
    return [
        path for path in paths if not {"__pycache__", "prebuilt"} & set(path.relative_to(ROOT).parts[:-1])
    ]


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def c_functions(source: str) -> Iterator[tuple[str, int]]:
    """Kernel style: the body's braces stand alone in column 0, the name in a line before them."""
    lines = source.splitlines()
    start = None
    for number, line in enumerate(lines):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            heading = " ".join(lines[max(0, start - 4) : start])
            names = re.findall(r"(\w+)\(", heading)
            yield (names[0] if names else f"line {start}"), number - start + 2
            start = None


def test_files_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in files(".py", ".c", ".h", ".cc", ".mk")}
    assert not {path: count for path, count in lines.items() if count > MAX_FILE_LINES}


def test_functions_are_short() -> None:
    for path in files(".py", ".c", ".h", ".cc"):
        functions = python_functions if path.suffix == ".py" else c_functions
        found = functions(path.read_text())
        assert not {name: lines for name, lines in found if lines > MAX_FUNCTION_LINES}, path


def test_the_counting_sees_long_functions() -> None:
    body = "\n".join("\tx++;" for _ in range(70))
    assert dict(c_functions(f"static int ml_long(int x)\n{{\n{body}\n}}\n")) == {"ml_long": 73}
    body = "\n".join("    x += 1" for _ in range(70))
    assert dict(python_functions(f"def long(x):\n{body}\n")) == {"long": 71}


def test_files_are_named_for_what_they_hold() -> None:
    vague = [str(path) for path in files(".py", ".c", ".h", ".cc") if VAGUE_NAMES & set(path.stem.split("_"))]
    assert not vague


@functools.cache
def rooms() -> dict[Path, list[Path]]:
    """Source folders of the product → their files."""
    found: dict[Path, list[Path]] = {}
    for path in files(".py", ".c", ".h"):
        if path.relative_to(ROOT).parts[0] in ("host", "unwind", "device"):
            found.setdefault(path.parent, []).append(path)
    return found


def test_folders_hold_neither_too_much_nor_too_little() -> None:
    """Folders that the project's card names, headers that are shipped, and folders of tests may hold less."""
    small = {"host/prebuilt", "host/tracers", "device/preload/include", "device/demo"}
    held: dict[Path, list[Path]] = {}
    for path in files(".py", ".c", ".h", ".cc"):
        held.setdefault(path.parent, []).append(path)
    wrong = {}
    for folder, inside in held.items():
        name = str(folder.relative_to(ROOT))
        most = MAX_PYTHON_FILES if any(path.suffix == ".py" for path in inside) else MAX_C_FILES
        if len(inside) > most or (len(inside) < MIN_FILES and folder in rooms() and name not in small):
            wrong[name] = len(inside)
    assert not wrong


def test_every_room_says_what_it_is() -> None:
    for folder in rooms():
        init = folder / "__init__.py"
        if init.exists():
            sentence = ast.get_docstring(ast.parse(init.read_text()))
            assert sentence and len(sentence.split()) >= 5, folder


def test_every_c_file_states_its_licence() -> None:
    for path in files(".c", ".h", ".cc"):
        relative = str(path.relative_to(ROOT))
        if not relative.startswith(("device/", "ndk-build/")):
            continue
        needed = next(names for folder, names in LICENCES.items() if relative.startswith(folder))
        stated = re.search(r"SPDX-License-Identifier: ([^*\n]+)", path.read_text().splitlines()[0])
        assert stated and needed <= set(stated[1].split()), relative


def test_shim_and_bpf_programs_do_not_know_each_other() -> None:
    for mine, other in (("bpf", "preload"), ("preload", "bpf")):
        for path in (ROOT / "device" / mine).rglob("*.[ch]"):
            included = re.findall(r'#include "([^"]+)"', path.read_text())
            assert not [name for name in included if f"{other}/" in name], path


@pytest.mark.parametrize(("package", "importer"), [("capstone", "disassembly.py"), ("adbutils", "server.py")])
def test_only_one_file_imports(package: str, importer: str) -> None:
    importers = [
        path.name
        for path in files(".py")
        if "tests" not in path.relative_to(ROOT).parts
        and re.search(rf"^\s*(import|from) {package}", path.read_text(), re.MULTILINE)
    ]
    assert importers == [importer]


def test_shell_scripts_are_strict() -> None:
    assert "set -euo pipefail" in (ROOT / ".ci" / "run").read_text()


# --follow and --all of a BPF session place probes in every process that has the file (the mark changes_all_code).
OF_EVERY_PROCESS = re.compile(r'follow=True|"--follow"|follow 1\b|"--all"|whole_machine 1')
OF_FEW = {
    "probes a file of its own": (
        *("test_children_are_followed_to_the_last", "test_a_kernel_without_cookies_is_reported"),
        *("test_a_session_of_every_process_leaves_it_out", "test_snoop_with_children_leaves_a_process_out"),
    ),
    "begins no session": (
        *("test_usage", "test_the_largest_child_is_named", "test_options_of_other_tracers"),
        "test_what_does_not_go_with_it_is_said",
    ),
    "is the shim's": (
        *("test_a_program_that_was_deleted", "test_a_fork_that_is_followed_keeps_its_own"),
        "test_of_forked_children",
    ),
}


def test_tests_that_probe_every_process_are_marked() -> None:
    """Else they fail tests beside them that compare code with its file, once in many runs."""
    known, unmarked = {name for names in OF_FEW.values() for name in names}, list[str]()
    for path in (ROOT / "tests").rglob("test_*.py"):
        source = path.read_text()
        for node in ast.parse(source).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            begin = min(node.lineno, *(one.lineno for one in node.decorator_list), node.lineno)
            text = "\n".join(source.splitlines()[begin - 1 : node.end_lineno])
            is_marked = re.search(r"changes_all_code|both_following|preload", text)
            if OF_EVERY_PROCESS.search(text) and not is_marked and node.name not in known:
                unmarked.append(f"{path.relative_to(ROOT)}::{node.name}")
    assert not unmarked
